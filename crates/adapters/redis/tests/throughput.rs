//! What the store can do alone: whole life cycles of tasks, committed in batches. Not a test of anything, so it runs
//! only when asked for: `cargo test --profile ci -p tasklane-redis --test throughput -- --ignored --nocapture`.

mod support;

use std::sync::Arc;
use std::time::Instant;

use support::RedisServer;
use tasklane_core::commit::Group;
use tasklane_core::status::Status::{Dispatched, Running, Scheduled, Success};
use tasklane_core::task::{NewTask, TaskState};
use tasklane_ports::conformance::fixture::{
    APPLIED, LANE, Owner, advance, at, changing, create, inserting_assigned, tasks,
};
use tasklane_ports::conformance::run;
use tasklane_ports::{Store, TaskFilter, TaskList};

const TASKS: u64 = 100_000;

fn assigned(new: &NewTask) -> TaskState {
    advance(&new.state(), &[Scheduled], at(1_000)).1
}

fn groups(new: &[NewTask], group: impl Fn(&NewTask) -> Group) -> Vec<Group> {
    new.iter().map(group).collect()
}

#[test]
#[ignore = "a measurement"]
fn life_cycles() {
    run("life cycles", async {
        for (mode, persistence) in [("no persistence", "no"), ("AOF everysec", "yes")] {
            let server = RedisServer::start_with(&["--save", "", "--appendonly", persistence])?;
            for batch in if std::env::var_os("STATS").is_some() { vec![1000] } else { vec![1, 10, 100, 1000] }
            {
                let store: Arc<dyn Store> =
                    Arc::new(support::connect(&server.url(), &support::fresh_options()).await);
                let count = if batch < 100 { TASKS / 10 } else { TASKS };
                let new = tasks(0..count);
                let mut owner = Owner::claim(&store, LANE).await;
                let cpu_before = cpu_seconds(&server);

                let started = Instant::now();
                for batch in new.chunks(batch) {
                    create(&*store, batch).await;
                }
                let submitted = started.elapsed();
                for batch in new.chunks(batch) {
                    let outcomes =
                        owner.commit(groups(batch, |new| changing(new.id, &new.state(), &[Scheduled]))).await;
                    assert!(outcomes.iter().all(|outcome| *outcome == APPLIED));
                }
                let scheduled = started.elapsed() - submitted;
                for batch in new.chunks(batch) {
                    let finish =
                        |new: &NewTask| changing(new.id, &assigned(new), &[Dispatched, Running, Success]);
                    let outcomes = owner.commit(groups(batch, finish)).await;
                    assert!(outcomes.iter().all(|outcome| *outcome == APPLIED));
                }
                let three = started.elapsed();
                let finished = three - scheduled - submitted;
                let cpu_of_three = cpu_seconds(&server) - cpu_before;

                let other = tasks(count..2 * count);
                let started = Instant::now();
                for batch in other.chunks(batch) {
                    owner.commit(groups(batch, |new| inserting_assigned(new.clone()))).await;
                    let finish =
                        |new: &NewTask| changing(new.id, &assigned(new), &[Dispatched, Running, Success]);
                    owner.commit(groups(batch, finish)).await;
                }
                let two = started.elapsed();
                let cpu_of_two = cpu_seconds(&server) - cpu_before - cpu_of_three;

                #[expect(clippy::cast_precision_loss, reason = "a measurement")]
                let rate = |time: std::time::Duration| (count as f64 / time.as_secs_f64()).round();
                println!(
                    "{mode}, batches of {batch}: submit {}/s, assign {}/s, finish {}/s; life cycles with 3 writes \
                     {}/s, with 2 writes {}/s",
                    rate(submitted),
                    rate(scheduled),
                    rate(finished),
                    rate(three),
                    rate(two)
                );
                // On a machine with other work only this can be compared.
                #[expect(clippy::cast_precision_loss, reason = "a measurement")]
                let per_task = |seconds: f64| (seconds * 1e7 / count as f64).round() / 10.0;
                println!(
                    "  server: {} us of CPU per life cycle with 3 writes, {} us with 2 writes",
                    per_task(cpu_of_three),
                    per_task(cpu_of_two)
                );
                if batch == 1000 {
                    let started = Instant::now();
                    let list = TaskList { filter: TaskFilter::default(), after: None, limit: 100 };
                    let listed = store.list(list).await.unwrap().tasks.len();
                    println!("  a list of {listed} in {:?}", started.elapsed());
                    println!("  {}", memory(&server));
                }
            }
        }
        Some(())
    });
}

fn cpu_seconds(server: &RedisServer) -> f64 {
    let info = server.command(&["INFO", "cpu"]);
    let seconds = |name: &str| {
        let line = info.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|seconds| seconds.trim().parse::<f64>().ok()).unwrap_or(f64::NAN)
    };
    seconds("used_cpu_user:") + seconds("used_cpu_sys:")
}

fn memory(server: &RedisServer) -> String {
    let info = server.command(&["INFO", "memory"]);
    info.lines().find(|line| line.starts_with("used_memory_human")).unwrap_or_default().to_owned()
}
