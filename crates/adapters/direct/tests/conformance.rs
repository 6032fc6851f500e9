//! The direct bus under the suite of its port: within a member, and between members in every relation that
//! there is.

mod support;

use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use tasklane_direct::DirectBus;
use tasklane_ports::Bus;
use tasklane_ports::conformance::BusEnv;

use support::{endpoint, meet, server, until, worker};

/// All of them are the same member.
struct Alone(DirectBus);

#[async_trait]
impl BusEnv for Alone {
    fn bus(&self) -> Arc<dyn Bus> {
        Arc::new(self.0.clone())
    }
}

async fn alone() -> Option<Alone> {
    Some(Alone(server().await))
}

/// A server, and a new worker each time another handle is asked for.
struct Server {
    server: DirectBus,
    workers: Mutex<Vec<DirectBus>>,
}

#[async_trait]
impl BusEnv for Server {
    fn bus(&self) -> Arc<dyn Bus> {
        Arc::new(self.server.clone())
    }

    async fn second(&self) -> Arc<dyn Bus> {
        let worker = worker().await;
        worker.set_peers(vec![endpoint(&self.server)]);
        let count = {
            let mut workers = self.workers.lock().expect("no case panics while it holds the lock");
            workers.push(worker.clone());
            workers.len()
        };
        until(&worker, |now| now.peers == 1).await;
        until(&self.server, |now| now.peers == count).await;
        Arc::new(worker)
    }
}

async fn server_and_workers() -> Option<Server> {
    Some(Server { server: server().await, workers: Mutex::default() })
}

/// A worker, and a new server each time another handle is asked for.
struct Worker {
    worker: DirectBus,
    servers: Mutex<Vec<DirectBus>>,
}

#[async_trait]
impl BusEnv for Worker {
    fn bus(&self) -> Arc<dyn Bus> {
        Arc::new(self.worker.clone())
    }

    async fn second(&self) -> Arc<dyn Bus> {
        let server = server().await;
        let endpoints: Vec<String> = {
            let mut servers = self.servers.lock().expect("no case panics while it holds the lock");
            servers.push(server.clone());
            servers.iter().map(endpoint).collect()
        };
        let count = endpoints.len();
        self.worker.set_peers(endpoints);
        until(&self.worker, |now| now.peers == count).await;
        until(&server, |now| now.peers == 1).await;
        Arc::new(server)
    }
}

async fn worker_and_servers() -> Option<Worker> {
    Some(Worker { worker: worker().await, servers: Mutex::default() })
}

/// Two servers that have dialled each other.
struct Servers(DirectBus, DirectBus);

#[async_trait]
impl BusEnv for Servers {
    fn bus(&self) -> Arc<dyn Bus> {
        Arc::new(self.0.clone())
    }

    async fn second(&self) -> Arc<dyn Bus> {
        Arc::new(self.1.clone())
    }
}

async fn two_servers() -> Option<Servers> {
    let servers = Servers(server().await, server().await);
    meet(&[&servers.0, &servers.1], &[]).await;
    Some(servers)
}

mod within_a_member {
    use super::alone;

    tasklane_ports::bus_conformance!(alone);
}

mod from_a_server_to_workers {
    use super::server_and_workers;

    tasklane_ports::bus_conformance!(server_and_workers);
}

mod from_a_worker_to_servers {
    use super::worker_and_servers;

    tasklane_ports::bus_conformance!(worker_and_servers);
}

mod between_servers {
    use super::two_servers;

    tasklane_ports::bus_conformance!(two_servers);
}
