//! The inbox when servers and connections fail, and the cost of an empty inbox.

mod support;

use std::sync::Arc;
use std::time::{Duration, Instant};

use support::{Mode, Proxy, RedisServer};
use tasklane_core::id::SessionId;
use tasklane_ports::conformance::run;
use tasklane_ports::{Intake, IntakeMessage};
use tasklane_redis::{RedisIntake, RedisOptions};

async fn connect(url: &str, options: &RedisOptions, taker: u128) -> Arc<RedisIntake> {
    let intake = RedisIntake::connect(url, options, SessionId::from_random(taker)).await;
    Arc::new(intake.unwrap_or_else(|error| panic!("{url}: {error}")))
}

fn send(server: &RedisServer, options: &RedisOptions, body: &str) {
    let answer = server.command(&["LPUSH", &format!("{}:inbox", options.prefix), body]);
    assert!(answer.starts_with(':'), "{answer}");
}

/// Takes until it succeeds, as a driver would.
async fn take(intake: &RedisIntake) -> Vec<IntakeMessage> {
    let started = Instant::now();
    loop {
        match intake.take(10).await {
            Ok(taken) => return taken,
            Err(error) => assert!(started.elapsed() < Duration::from_secs(20), "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

fn bodies(messages: &[IntakeMessage]) -> Vec<&str> {
    messages.iter().map(|message| std::str::from_utf8(&message.body).expect("a text")).collect()
}

#[test]
fn what_was_taken_by_a_call_whose_answer_was_lost_is_given_all_the_same() {
    run("lost answer", async {
        let server = RedisServer::start()?;
        let proxy = Proxy::start(server.port()).await;
        let options = support::fresh_options();
        let intake = connect(&proxy.url(), &options, 1).await;
        send(&server, &options, "first");
        // The server knows the script from here on.
        let first = take(&intake).await;
        for body in ["a", "b", "c"] {
            send(&server, &options, body);
        }
        proxy.set(Mode::LoseAnswers);
        assert!(intake.take(10).await.unwrap_err().is_retryable());
        let left = format!("{}:inbox", options.prefix);
        assert_eq!(server.command(&["LLEN", &left]), ":0\r\n", "the server has given them out");
        proxy.set(Mode::Pass);
        send(&server, &options, "later");
        let again = take(&intake).await;
        assert_eq!(bodies(&again), ["a", "b", "c"]);
        assert_eq!(bodies(&take(&intake).await), ["later"]);
        // Messages that the caller has already are not given twice.
        assert_eq!(bodies(&first), ["first"]);
        Some(())
    });
}

#[test]
fn what_cannot_be_put_aside_is_not_lost() {
    run("no dead letters", async {
        let server = RedisServer::start()?;
        let options = support::fresh_options();
        let intake = connect(&server.url(), &options, 1).await;
        let dead = format!("{}:inbox:dead", options.prefix);
        assert_eq!(server.command(&["SET", &dead, "something else"]), "+OK\r\n");
        send(&server, &options, "bad");
        let taken = take(&intake).await;
        let rejected = [(taken[0].clone(), "no reason".to_owned())];
        for _ in 0..2 {
            intake.reject(&rejected).await.unwrap_err();
        }
        assert_eq!(server.command(&["DEL", &dead]), ":1\r\n");
        intake.reject(&rejected).await.unwrap();
        assert_eq!(server.command(&["LLEN", &dead]), ":1\r\n");
        Some(())
    });
}

#[test]
fn a_taker_goes_on_after_a_restart_of_the_server() {
    run("restart", async {
        let mut server = RedisServer::start_with(&["--save", "", "--appendonly", "yes"])?;
        let options = support::fresh_options();
        let intake = connect(&server.url(), &options, 1).await;
        send(&server, &options, "kept");
        let kept = take(&intake).await;
        let waiting = Arc::clone(&intake);
        let waiting = tokio::spawn(async move { take(&waiting).await });
        tokio::time::sleep(Duration::from_millis(50)).await;
        server.kill();
        server.start_again();
        send(&server, &options, "new");
        assert_eq!(bodies(&waiting.await.unwrap()), ["new"]);
        intake.acknowledge(&[kept[0].id.clone()]).await.unwrap();
        // The next taker gets the messages of the lost one, under the same ids.
        drop(intake);
        let second = connect(&server.url(), &options, 2).await;
        second.recover(&[SessionId::from_random(2)]).await.unwrap();
        let given = take(&second).await;
        assert_eq!(bodies(&given), ["new"]);
        assert!(given[0].id.starts_with(&SessionId::from_random(1).0.simple().to_string()));
        Some(())
    });
}

#[test]
fn waiting_costs_nothing() {
    run("idle", async {
        let server = RedisServer::start()?;
        let options = support::fresh_options();
        let intake = connect(&server.url(), &options, 1).await;
        let waiting = Arc::clone(&intake);
        let waiting = tokio::spawn(async move { take(&waiting).await });
        let blocked = || server.command(&["INFO", "clients"]).contains("blocked_clients:1");
        while !blocked() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let calls = || {
            let stats = server.command(&["INFO", "commandstats"]);
            let ours = stats.lines().filter(|line| !line.contains("cmdstat_info") && line.contains("calls="));
            ours.map(|line| line.split(',').next().unwrap_or_default().to_owned()).collect::<Vec<_>>()
        };
        let before = calls();
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(calls(), before);
        send(&server, &options, "woken");
        assert_eq!(bodies(&waiting.await.unwrap()), ["woken"]);
        Some(())
    });
}

/// How many messages a taker takes and acknowledges: printed, to be compared.
#[test]
#[ignore = "measures"]
fn how_much_it_takes() {
    const MESSAGES: usize = 200_000;
    run("throughput", async {
        let server = RedisServer::start()?;
        let options = support::fresh_options();
        let intake = connect(&server.url(), &options, 1).await;
        let body = format!("{{\"taskType\":\"SHELL\",\"payload\":\"{}\"}}", "x".repeat(200));
        let inbox = format!("{}:inbox", options.prefix);
        for _ in 0..MESSAGES / 500 {
            let mut command = vec!["LPUSH", inbox.as_str()];
            command.extend(std::iter::repeat_n(body.as_str(), 500));
            server.command(&command);
        }
        for limit in [100, 1_000] {
            let (started, mut count) = (Instant::now(), 0);
            while count < MESSAGES / 2 {
                let taken = intake.take(limit).await.unwrap();
                let ids: Vec<_> = taken.iter().map(|message| message.id.clone()).collect();
                intake.acknowledge(&ids).await.unwrap();
                count += taken.len();
            }
            println!("{count} messages by {limit} in {:?}", started.elapsed());
        }
        Some(())
    });
}
