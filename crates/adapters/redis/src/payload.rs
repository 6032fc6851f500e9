//! The payload of a channel: a version, then each message after its length. A receiver skips a message that
//! it cannot decode and keeps the others.

use tasklane_core::message::Message;
use tasklane_ports::codec;

const VERSION: u8 = 1;

/// Encoded messages for one channel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Batch(Vec<u8>);

impl Batch {
    pub(crate) fn add(&mut self, encoded: &[u8]) {
        let len = u32::try_from(encoded.len()).expect("messages are bounded");
        self.0.reserve(encoded.len() + 4);
        self.0.extend(len.to_be_bytes());
        self.0.extend(encoded);
    }

    pub(crate) fn append(&mut self, next: &Self) {
        self.0.extend(&next.0);
    }

    pub(crate) fn bytes(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn payload(&self) -> Vec<u8> {
        let mut payload = Vec::with_capacity(1 + self.0.len());
        payload.push(VERSION);
        payload.extend(&self.0);
        payload
    }
}

/// How many messages a payload has.
pub(crate) fn len(payload: &[u8]) -> usize {
    parts(payload).count()
}

/// The messages of a payload that can be read.
pub(crate) fn messages(payload: &[u8]) -> impl Iterator<Item = Message> {
    parts(payload).filter_map(|encoded| codec::decode(encoded).ok())
}

fn parts(payload: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = match payload.split_first() {
        Some((&VERSION, rest)) => rest,
        _ => &[],
    };
    std::iter::from_fn(move || {
        let (len, after) = rest.split_first_chunk::<4>()?;
        let (part, after) = after.split_at_checked(usize::try_from(u32::from_be_bytes(*len)).ok()?)?;
        rest = after;
        Some(part)
    })
}

#[cfg(test)]
mod tests {
    use tasklane_core::id::LaneId;

    use super::*;

    fn hint(lane: u16) -> Message {
        Message::Hint { lane: LaneId(lane) }
    }

    fn batch(lanes: &[u16]) -> Batch {
        let mut batch = Batch::default();
        for lane in lanes {
            batch.add(&codec::encode(&hint(*lane)));
        }
        batch
    }

    fn read(payload: &[u8]) -> Vec<Message> {
        messages(payload).collect()
    }

    #[test]
    fn batches_travel_together() {
        let mut both = batch(&[1, 2]);
        both.append(&batch(&[3]));
        let payload = both.payload();
        assert_eq!(len(&payload), 3);
        assert_eq!(read(&payload), [hint(1), hint(2), hint(3)]);
    }

    #[test]
    fn what_cannot_be_read_is_passed_over() {
        let mut with_another = batch(&[1]);
        with_another.add(b"\xc1 of a later version");
        with_another.append(&batch(&[2]));
        assert_eq!(read(&with_another.payload()), [hint(1), hint(2)]);
        let mut cut_off = batch(&[1, 2]).payload();
        cut_off.pop();
        assert_eq!(read(&cut_off), [hint(1)]);
        assert_eq!(read(b""), []);
        assert_eq!(read(b"\x02\0\0\0\x01x"), []);
    }
}
