//! The tasks of a line that are in memory, in their order. Where there are many lines most have one task,
//! which takes no memory of its own.

use std::collections::BTreeMap;

use crate::task::OrderKey;

use super::entry::Handle;

/// See the [module](self).
#[derive(Debug)]
pub(super) enum Window {
    Empty,
    One(OrderKey, Handle),
    Many(BTreeMap<OrderKey, Handle>),
}

impl Window {
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Empty => 0,
            Self::One(..) => 1,
            Self::Many(tasks) => tasks.len(),
        }
    }

    pub(super) fn first(&self) -> Option<(OrderKey, Handle)> {
        match self {
            Self::Empty => None,
            Self::One(order, entry) => Some((*order, *entry)),
            Self::Many(tasks) => tasks.first_key_value().map(|(order, entry)| (*order, *entry)),
        }
    }

    pub(super) fn last(&self) -> Option<(OrderKey, Handle)> {
        match self {
            Self::Many(tasks) => tasks.last_key_value().map(|(order, entry)| (*order, *entry)),
            Self::Empty | Self::One(..) => self.first(),
        }
    }

    pub(super) fn insert(&mut self, order: OrderKey, entry: Handle) {
        match self {
            Self::Empty => *self = Self::One(order, entry),
            Self::One(first, at_first) => {
                *self = Self::Many(BTreeMap::from([(*first, *at_first), (order, entry)]));
            }
            Self::Many(tasks) => {
                tasks.insert(order, entry);
            }
        }
    }

    pub(super) fn remove(&mut self, order: &OrderKey) {
        match self {
            Self::Many(tasks) => {
                tasks.remove(order);
                if tasks.is_empty() {
                    *self = Self::Empty;
                }
            }
            Self::One(only, _) if only == order => *self = Self::Empty,
            Self::Empty | Self::One(..) => {}
        }
    }

    /// Takes everything out.
    pub(super) fn clear(&mut self) {
        *self = Self::Empty;
    }

    /// All of them, in their order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (OrderKey, Handle)> {
        let (one, many) = match self {
            Self::Many(tasks) => (None, Some(tasks.iter().map(|(order, entry)| (*order, *entry)))),
            Self::Empty | Self::One(..) => (self.first(), None),
        };
        one.into_iter().chain(many.into_iter().flatten())
    }

    /// How many are before a position.
    pub(super) fn before(&self, order: OrderKey) -> usize {
        match self {
            Self::Many(tasks) => tasks.range(..order).count(),
            Self::Empty | Self::One(..) => self.iter().filter(|(only, _)| *only < order).count(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::Seq;
    use crate::time::Timestamp;

    fn order(seq: u64) -> OrderKey {
        OrderKey { rank: 4, due: Timestamp::ZERO, seq: Seq(seq) }
    }

    #[test]
    fn it_is_in_order_whatever_its_size() {
        let mut window = Window::Empty;
        assert_eq!((window.len(), window.first(), window.last()), (0, None, None));
        for (seq, len) in [(2, 1), (1, 2), (3, 3)] {
            window.insert(order(seq), usize::try_from(seq).unwrap());
            assert_eq!((window.len(), window.iter().count()), (len, len));
        }
        assert_eq!(window.iter().map(|(_, entry)| entry).collect::<Vec<_>>(), [1, 2, 3]);
        assert_eq!((window.first(), window.last()), (Some((order(1), 1)), Some((order(3), 3))));
        assert_eq!((window.before(order(3)), window.before(order(1))), (2, 0));
        for (seq, len) in [(9, 3), (1, 2), (3, 1), (2, 0)] {
            window.remove(&order(seq));
            assert_eq!(window.len(), len);
        }
        assert!(matches!(window, Window::Empty), "nothing is kept for later");
    }

    #[test]
    fn one_alone_is_in_order_too() {
        let mut window = Window::Empty;
        window.insert(order(5), 7);
        window.remove(&order(4));
        assert_eq!((window.first(), window.last()), (Some((order(5), 7)), Some((order(5), 7))));
        assert_eq!((window.before(order(6)), window.before(order(5))), (1, 0));
        window.clear();
        assert_eq!(window.len(), 0);
    }
}
