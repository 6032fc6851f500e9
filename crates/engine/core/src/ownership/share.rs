//! Fair shares: the lanes that each server should own. Each server computes them from the same list of
//! members.

use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::id::{LaneId, SessionId};

/// The server that should own each lane, by number of the lane; empty where there is no server.
///
/// Every server gets as many lanes as any other, or one less. Within that, each lane goes to the server that
/// rendezvous hashing ranks first among those with room, so that a server that comes or goes moves little
/// more than its share.
pub fn fair_shares(lanes: u16, servers: impl Iterator<Item = SessionId>) -> Vec<SessionId> {
    let mut servers: Vec<(SessionId, usize)> = servers.map(|server| (server, 0)).collect();
    servers.sort_unstable();
    if servers.is_empty() {
        return Vec::new();
    }
    let least = usize::from(lanes) / servers.len();
    // This many servers own one lane more.
    let mut more = usize::from(lanes) % servers.len();
    let rank =
        |server: SessionId, lane: LaneId| (xxh3_64_with_seed(server.0.as_bytes(), u64::from(lane.0)), server);
    let share = |lane: LaneId| {
        let with_room = servers.iter_mut().filter(|(_, held)| *held < least + usize::from(more > 0));
        let chosen = with_room.max_by_key(|(server, _)| rank(*server, lane));
        let (server, held) = chosen.expect("the room of all servers together is the number of lanes");
        *held += 1;
        more -= usize::from(*held > least);
        *server
    };
    (0..lanes).map(LaneId).map(share).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn servers(count: u128) -> Vec<SessionId> {
        (1..=count).map(SessionId::from_random).collect()
    }

    #[test]
    fn every_server_has_as_many_as_any_other_or_one_less() {
        for count in 1..=20 {
            let servers = servers(count);
            for lanes in [1, 2, 16, 100] {
                let shares = fair_shares(lanes, servers.iter().copied());
                assert_eq!(shares.len(), usize::from(lanes));
                let held = |server| shares.iter().filter(|owner| *owner == server).count();
                let least = usize::from(lanes) / servers.len();
                assert!(servers.iter().all(|server| (least..=least + 1).contains(&held(server))));
            }
        }
    }

    #[test]
    fn the_order_in_which_servers_are_listed_does_not_matter() {
        let servers = servers(5);
        let shares = fair_shares(64, servers.iter().copied());
        assert_eq!(fair_shares(64, servers.iter().rev().copied()), shares);
        assert_eq!(fair_shares(64, std::iter::empty()), []);
    }

    #[test]
    fn a_lost_server_moves_little_more_than_its_own_lanes() {
        let servers = servers(4);
        let before = fair_shares(256, servers.iter().copied());
        for gone in &servers {
            let after = fair_shares(256, servers.iter().copied().filter(|server| server != gone));
            let moved = before.iter().zip(&after).filter(|(was, is)| was != is).count();
            assert!(moved < 128, "{moved} of 256 lanes moved where 64 had to");
        }
    }
}
