//! The suite of [`Logs`](crate::Logs). Numbers in the cases' docs are those of its promises.

/// One test for each case of the suite of logs. Takes an `async fn` that gives an `Option` of a
/// [`LogsEnv`](crate::conformance::LogsEnv) in a fresh, empty place.
#[macro_export]
macro_rules! logs_conformance {
    ($factory:expr) => {
        $crate::conformance_cases!(logs, run, $factory, {
            chunks: [
                chunks_are_read_in_order,
                chunks_may_come_out_of_order,
                a_chunk_is_kept_once,
                reading_goes_on_after_a_position,
                tasks_are_kept_apart,
                any_bytes_are_kept,
                chunks_survive_a_crash,
                many_may_append_at_once,
                the_tail_is_the_end_in_reading_order,
                removed_output_is_gone,
                removed_output_stays_gone_after_a_crash,
                much_output_is_removed_at_once,
            ],
        });
    };
}

/// The cases.
pub mod chunks {
    use std::sync::Arc;

    use futures::future::join_all;
    use tasklane_core::id::{AttemptNo, TaskId};

    use crate::conformance::LogsEnv;
    use crate::conformance::fixture::{OTHER_LANE, TaskBuilder, at, task};
    use crate::{LogChunk, LogPosition, LogStream, Logs};

    fn position(attempt: u32, number: u32) -> LogPosition {
        LogPosition { attempt: AttemptNo(attempt), number }
    }

    fn chunk(of: u64, attempt: u32, number: u32) -> LogChunk {
        let stream = [LogStream::Stdout, LogStream::Stderr, LogStream::System][number as usize % 3];
        LogChunk {
            task: task(of).id(),
            position: position(attempt, number),
            stream,
            at: at(i64::from(attempt) * 1_000 + i64::from(number)),
            bytes: format!("attempt {attempt} line {number}\n").into_bytes(),
        }
    }

    async fn read(logs: &dyn Logs, of: TaskId) -> Vec<LogChunk> {
        logs.read(of, None, 10_000).await.unwrap()
    }

    /// 2: by attempt, then number.
    pub async fn chunks_are_read_in_order(env: &dyn LogsEnv) {
        let logs = env.logs();
        assert_eq!(read(&*logs, task(1).id()).await, []);
        let chunks: Vec<_> =
            [(1, 0), (1, 1), (1, 2), (2, 0), (10, 0), (10, 300)].map(|(a, n)| chunk(1, a, n)).into();
        logs.append(&chunks).await.unwrap();
        assert_eq!(read(&*logs, task(1).id()).await, chunks);
    }

    /// 1, 2: over calls and within one.
    pub async fn chunks_may_come_out_of_order(env: &dyn LogsEnv) {
        let logs = env.logs();
        let chunks: Vec<_> = (0..6).map(|n| chunk(1, 1 + n / 3, n % 3)).collect();
        for index in [5, 0, 3] {
            logs.append(&chunks[index..=index]).await.unwrap();
        }
        logs.append(&[chunks[4].clone(), chunks[1].clone(), chunks[2].clone()]).await.unwrap();
        assert_eq!(read(&*logs, task(1).id()).await, chunks);
    }

    /// 1: of several with the same position the first counts, over calls and within one.
    pub async fn a_chunk_is_kept_once(env: &dyn LogsEnv) {
        let logs = env.logs();
        let first = chunk(1, 1, 0);
        let mut second = first.clone();
        second.bytes = b"something else".to_vec();
        second.stream = LogStream::System;
        let next = chunk(1, 1, 1);
        logs.append(std::slice::from_ref(&first)).await.unwrap();
        logs.append(std::slice::from_ref(&first)).await.unwrap();
        let mut next_again = next.clone();
        next_again.bytes = b"something else".to_vec();
        logs.append(&[second, next.clone(), next_again]).await.unwrap();
        assert_eq!(read(&*logs, task(1).id()).await, [first, next]);
    }

    /// 3: bounded; a read continues after a position, with or without a chunk there.
    pub async fn reading_goes_on_after_a_position(env: &dyn LogsEnv) {
        let logs = env.logs();
        let chunks: Vec<_> = (0..10).map(|n| chunk(1, 1 + n / 4, n % 4 * 2)).collect();
        logs.append(&chunks).await.unwrap();
        for limit in [1, 3, 10, 100] {
            let (mut after, mut seen) = (None, Vec::new());
            loop {
                let page = logs.read(task(1).id(), after, limit).await.unwrap();
                assert!(page.len() <= limit);
                let Some(last) = page.last() else { break };
                after = Some(last.position);
                seen.extend(page);
            }
            assert_eq!(seen, chunks);
        }
        let rest = logs.read(task(1).id(), Some(position(1, 3)), 100).await.unwrap();
        assert_eq!(rest, chunks[2..]);
        let rest = logs.read(task(1).id(), Some(position(1, u32::MAX)), 100).await.unwrap();
        assert_eq!(rest, chunks[4..]);
    }

    /// 2: one call may bring chunks of many tasks.
    pub async fn tasks_are_kept_apart(env: &dyn LogsEnv) {
        let logs = env.logs();
        let chunks: Vec<_> = (0..9).map(|n| chunk(u64::from(n % 3), 1, n / 3)).collect();
        logs.append(&chunks).await.unwrap();
        for of in 0..3 {
            let id = task(of).id();
            let expected: Vec<_> = chunks.iter().filter(|chunk| chunk.task == id).cloned().collect();
            assert_eq!(read(&*logs, id).await, expected);
        }
        logs.append(&[]).await.unwrap();
    }

    /// 1: output is not always text; it may be empty or large.
    pub async fn any_bytes_are_kept(env: &dyn LogsEnv) {
        let logs = env.logs();
        let all: Vec<u8> = (0..=255).collect();
        let mut chunks = [chunk(1, 1, 0), chunk(1, 1, 1), chunk(1, 1, 2)];
        chunks[0].bytes.clone_from(&all);
        chunks[1].bytes = Vec::new();
        chunks[2].bytes = all.iter().copied().cycle().take(64 << 10).collect();
        logs.append(&chunks).await.unwrap();
        assert_eq!(read(&*logs, task(1).id()).await, chunks);
    }

    /// 1: chunks stay once `append` has answered.
    pub async fn chunks_survive_a_crash(env: &dyn LogsEnv) {
        let chunks: Vec<_> = (0..3).map(|n| chunk(1, 1, n)).collect();
        let logs = env.logs();
        logs.append(&chunks).await.unwrap();
        drop(logs);
        assert_eq!(read(&*env.reopen_logs().await, task(1).id()).await, chunks);
    }

    /// 1: also the same chunks.
    pub async fn many_may_append_at_once(env: &dyn LogsEnv) {
        let logs = env.logs();
        let writers = (0..8_u32).map(|writer| {
            let logs = Arc::clone(&logs);
            let chunks: Vec<_> = (0..10).map(|n| chunk(1, 1 + writer / 2, n)).collect();
            tokio::spawn(async move { logs.append(&chunks).await })
        });
        for written in join_all(writers).await {
            written.unwrap().unwrap();
        }
        let expected: Vec<_> = (0..40).map(|n| chunk(1, 1 + n / 10, n % 10)).collect();
        assert_eq!(read(&*logs, task(1).id()).await, expected);
    }

    /// 4: over several attempts, in whatever order the chunks arrived.
    pub async fn the_tail_is_the_end_in_reading_order(env: &dyn LogsEnv) {
        let logs = env.logs();
        let id = task(1).id();
        assert_eq!(logs.tail(id, 5).await.unwrap(), []);
        let chunks: Vec<_> = [(1, 0), (1, 1), (1, 300), (2, 0), (2, 1), (10, 0), (u32::MAX, u32::MAX)]
            .map(|(a, n)| chunk(1, a, n))
            .into();
        let late_first: Vec<_> = chunks.iter().rev().cloned().collect();
        logs.append(&late_first).await.unwrap();
        logs.append(&[chunk(0, 7, 7), chunk(2, 7, 7)]).await.unwrap();
        for limit in [1, 2, 3, 4, 6, 7, 100] {
            let tail = logs.tail(id, limit).await.unwrap();
            assert_eq!(tail, chunks[chunks.len().saturating_sub(limit)..], "{limit}");
        }
        assert_eq!(logs.tail(id, 0).await.unwrap(), []);
        // A reader that continues after the tail misses nothing.
        let last = logs.tail(id, 1).await.unwrap()[0].position;
        assert_eq!(logs.read(id, Some(last), 10).await.unwrap(), []);
    }

    /// 5: the output of the tasks named, all of it, also when removed twice; later chunks are kept.
    pub async fn removed_output_is_gone(env: &dyn LogsEnv) {
        let logs = env.logs();
        let chunks: Vec<_> =
            (0..4).flat_map(|of| [(1, 0), (1, 1), (2, 0)].map(|(a, n)| chunk(of, a, n))).collect();
        let elsewhere = LogChunk { task: TaskBuilder::new(OTHER_LANE, 1).id(), ..chunk(1, 1, 0) };
        logs.append(&chunks).await.unwrap();
        logs.append(std::slice::from_ref(&elsewhere)).await.unwrap();
        logs.remove(&[]).await.unwrap();
        for _ in 0..2 {
            logs.remove(&[task(1).id(), task(99).id(), task(2).id(), task(1).id()]).await.unwrap();
            for of in [1, 2] {
                assert_eq!(read(&*logs, task(of).id()).await, []);
                assert_eq!(logs.tail(task(of).id(), 5).await.unwrap(), []);
            }
            for of in [0, 3] {
                let expected: Vec<_> =
                    chunks.iter().filter(|chunk| chunk.task == task(of).id()).cloned().collect();
                assert_eq!(read(&*logs, task(of).id()).await, expected);
            }
            assert_eq!(read(&*logs, elsewhere.task).await, std::slice::from_ref(&elsewhere));
        }
        logs.remove(&[elsewhere.task, task(0).id()]).await.unwrap();
        assert_eq!(read(&*logs, elsewhere.task).await, []);
        let late = chunk(1, 1, 1);
        logs.append(std::slice::from_ref(&late)).await.unwrap();
        assert_eq!(read(&*logs, late.task).await, [late]);
    }

    /// 5: output stays removed once `remove` has answered.
    pub async fn removed_output_stays_gone_after_a_crash(env: &dyn LogsEnv) {
        let logs = env.logs();
        logs.append(&[chunk(1, 1, 0), chunk(2, 1, 0)]).await.unwrap();
        logs.remove(&[task(1).id()]).await.unwrap();
        drop(logs);
        let logs = env.reopen_logs().await;
        assert_eq!(read(&*logs, task(1).id()).await, []);
        assert_eq!(read(&*logs, task(2).id()).await, [chunk(2, 1, 0)]);
    }

    /// 5: many tasks, and a task with much output.
    pub async fn much_output_is_removed_at_once(env: &dyn LogsEnv) {
        let logs = env.logs();
        let much: Vec<_> = (0..3_000).map(|n| chunk(0, 1 + n / 1_000, n % 1_000)).collect();
        logs.append(&much).await.unwrap();
        let many: Vec<_> = (0..2_000).map(|of| chunk(of, 9, 0)).collect();
        logs.append(&many).await.unwrap();
        let ids: Vec<TaskId> = (0..1_999).map(|of| task(of).id()).collect();
        logs.remove(&ids).await.unwrap();
        for of in [0, 1, 1_000, 1_998] {
            assert_eq!(read(&*logs, task(of).id()).await, []);
        }
        assert_eq!(read(&*logs, task(1_999).id()).await.len(), 1);
    }
}
