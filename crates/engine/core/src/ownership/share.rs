//! Which server should own which lane: decided by each server for itself, from the same list of members.

use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::id::{LaneId, SessionId};

/// The server that should own a lane: rendezvous hashing, so that a server that comes or goes moves only its share.
pub fn fair_share(lane: LaneId, servers: impl Iterator<Item = SessionId>) -> Option<SessionId> {
    servers.max_by_key(|server| (xxh3_64_with_seed(server.0.as_bytes(), u64::from(lane.0)), *server))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lost_server_moves_only_its_own_lanes() {
        let servers: Vec<SessionId> = (1..=4).map(SessionId::from_random).collect();
        let owner = |lane, without: Option<SessionId>| {
            fair_share(LaneId(lane), servers.iter().copied().filter(|s| Some(*s) != without)).unwrap()
        };
        let gone = servers[2];
        for lane in 0..256 {
            let before = owner(lane, None);
            assert!(before == gone || owner(lane, Some(gone)) == before);
        }
        assert!((0..256).any(|lane| owner(lane, None) == gone));
    }
}
