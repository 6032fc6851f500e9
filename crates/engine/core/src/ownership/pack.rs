//! Packing groups into commits that the store can take.

use std::sync::Arc;

use crate::commit::Group;

/// The most that one commit may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PackLimits {
    /// Operations, as `Group::ops` counts them.
    pub ops_max: usize,
    /// Bytes, as `Group::bytes` counts them.
    pub bytes_max: usize,
}

/// Cuts groups, in their order, into as few commits as fit. A group that is too large alone goes alone, and
/// the store answers for it.
pub(super) fn pack(groups: Vec<Group>, limits: PackLimits) -> Vec<Arc<[Group]>> {
    let sizes: Vec<_> = groups.iter().map(|group| (group.ops(), group.bytes())).collect();
    let (ops, bytes) = sizes.iter().fold((0, 0), |(o, b), (ops, bytes)| (o + ops, b + bytes));
    if !groups.is_empty() && ops <= limits.ops_max && bytes <= limits.bytes_max {
        return vec![groups.into()];
    }
    let mut commits = Vec::new();
    let mut current: Vec<Group> = Vec::new();
    let (mut ops, mut bytes) = (0, 0);
    for (group, (group_ops, group_bytes)) in groups.into_iter().zip(sizes) {
        let fits = ops + group_ops <= limits.ops_max && bytes + group_bytes <= limits.bytes_max;
        if !fits && !current.is_empty() {
            commits.push(std::mem::take(&mut current).into());
            (ops, bytes) = (0, 0);
        }
        ops += group_ops;
        bytes += group_bytes;
        current.push(group);
    }
    if !current.is_empty() {
        commits.push(current.into());
    }
    commits
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commit::{RecordChange, RecordKey, RecordKind};

    fn group(records: usize) -> Group {
        let key = RecordKey { kind: RecordKind::Rate, key: "k".to_owned() };
        Group { records: vec![RecordChange { key, value: None }; records], ..Group::default() }
    }

    #[test]
    fn groups_keep_their_order_and_stay_whole() {
        let limits = PackLimits { ops_max: 5, bytes_max: 1 << 20 };
        let sizes = |groups: &[usize]| -> Vec<Vec<usize>> {
            let packed = pack(groups.iter().map(|&n| group(n)).collect(), limits);
            packed.iter().map(|commit| commit.iter().map(|g| g.records.len()).collect()).collect()
        };
        assert_eq!(sizes(&[2, 3, 1, 9, 1, 1]), [vec![2, 3], vec![1], vec![9], vec![1, 1]]);
        assert_eq!(sizes(&[]), Vec::<Vec<usize>>::new());
    }
}
