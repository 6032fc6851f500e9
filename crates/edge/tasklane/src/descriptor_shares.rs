//! How the file descriptors of a process are shared among connections, attempts and everything else.

use std::num::NonZeroU32;

/// The most connections by default. Each takes memory too: up to 64 KiB for half of a head.
const CONNECTIONS_MAX: u64 = 16_384;
/// Kept for the store, the log, the bus and all other files of a process.
const OTHERS: u64 = 128;
/// What an attempt takes while it is started: three pipes of two ends each, its standard input and a file.
const ATTEMPT: u64 = 8;

/// How many connections the API may have, of so many descriptors, beside attempts: as many as were asked for, or as fit.
pub(crate) fn connections_max(limit: u64, capacity: u32, asked: Option<NonZeroU32>) -> usize {
    let kept = (OTHERS + ATTEMPT * u64::from(capacity)).max(limit / 4);
    let fitting = limit.saturating_sub(kept).max(limit / 4).max(1);
    let max = match asked.map(|asked| u64::from(asked.get())) {
        Some(asked) if asked > fitting => {
            tracing::warn!(
                asked,
                fitting,
                limit,
                "limits.connections_max exceeds the file descriptors of this process: raise the hard limit of open files"
            );
            fitting
        }
        Some(asked) => asked,
        None => fitting.min(CONNECTIONS_MAX),
    };
    usize::try_from(max).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attempts_have_their_descriptors_whatever_the_limit() {
        for (limit, capacity, expected) in [
            (1024, 8, 768),
            (1024, 80, 256),
            (256, 8, 64),
            (20_000, 8, 15_000),
            (1_048_576, 8, 16_384),
            (u64::MAX, 8, 16_384),
            (0, 8, 1),
        ] {
            assert_eq!(connections_max(limit, capacity, None), expected, "{limit} {capacity}");
        }
        assert_eq!(connections_max(1024, 8, NonZeroU32::new(5)), 5);
        assert_eq!(connections_max(1024, 8, NonZeroU32::new(5000)), 768);
    }
}
