//! Between our types and those of the wire.

use bytes::Bytes;
use tasklane_core::id::{LaneId, SessionId};
use tasklane_core::message::Message;
use tasklane_ports::{Address, BusError, codec};
use uuid::Uuid;

use crate::wire;

/// A member as its peers know it: random for each start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct MemberId(u128);

impl MemberId {
    pub(crate) fn random() -> Self {
        Self(rand::random())
    }

    pub(crate) fn hello(self) -> wire::Hello {
        wire::Hello { member: Bytes::copy_from_slice(&self.0.to_be_bytes()) }
    }

    pub(crate) fn from_hello(hello: &wire::Hello) -> Option<Self> {
        let bytes: [u8; 16] = (*hello.member).try_into().ok()?;
        Some(Self(u128::from_be_bytes(bytes)))
    }
}

pub(crate) fn to_wire(address: Address) -> wire::Address {
    let to = match address {
        Address::Lane(lane) => wire::address::To::Lane(lane.0.into()),
        Address::Session(session) => wire::address::To::Session(Bytes::copy_from_slice(session.0.as_bytes())),
        Address::Events => wire::address::To::Events(wire::Events {}),
        Address::Stats => wire::address::To::Stats(wire::Stats {}),
        Address::Servers => wire::address::To::Servers(wire::Servers {}),
    };
    wire::Address { to: Some(to) }
}

/// `None` for a kind of address that only newer members know.
pub(crate) fn from_wire(address: &wire::Address) -> Option<Address> {
    Some(match address.to.as_ref()? {
        wire::address::To::Lane(lane) => Address::Lane(LaneId(u16::try_from(*lane).ok()?)),
        wire::address::To::Session(session) => Address::Session(SessionId(Uuid::from_slice(session).ok()?)),
        wire::address::To::Events(wire::Events {}) => Address::Events,
        wire::address::To::Stats(wire::Stats {}) => Address::Stats,
        wire::address::To::Servers(wire::Servers {}) => Address::Servers,
    })
}

/// Messages as bytes, once for all who get them. A batch that is larger than a message may be becomes several pieces.
pub(crate) fn encode(messages: &[Message], message_bytes_max: usize) -> Result<Vec<Bytes>, BusError> {
    let whole = codec::encode(messages);
    if whole.len() <= message_bytes_max {
        return Ok(vec![whole.into()]);
    }
    drop(whole);
    let mut pieces = Vec::new();
    let (mut first, mut size) = (0, 0);
    for (index, message) in messages.iter().enumerate() {
        let bytes = codec::encode(message).len();
        if bytes > message_bytes_max {
            return Err(BusError::TooLarge { size: bytes, max: message_bytes_max });
        }
        if size + bytes > message_bytes_max {
            pieces.push(first..index);
            (first, size) = (index, 0);
        }
        size += bytes;
    }
    pieces.push(first..messages.len());
    Ok(pieces.into_iter().map(|piece| codec::encode(&messages[piece]).into()).collect())
}

pub(crate) fn decode(bytes: &[u8]) -> Result<Vec<Message>, tasklane_ports::StoreError> {
    codec::decode(bytes)
}

#[cfg(test)]
mod tests {
    use prost::Message as _;
    use tasklane_core::id::{AttemptNo, TaskId};
    use tasklane_core::message::{AttemptId, Report, ToLane, WorkerBatch};
    use tasklane_testkit::golden::check;

    use super::*;

    fn message(bytes: usize) -> Message {
        let attempt = AttemptId { task: TaskId::from_random(7), number: AttemptNo(1) };
        let report = ToLane::Report { attempt, report: Report::HandedBack { reason: "x".repeat(bytes) } };
        let session = SessionId::from_random(1);
        Message::ToLane(WorkerBatch { lane: LaneId(1), session, messages: vec![report] })
    }

    #[test]
    fn addresses_survive_the_wire() {
        let addresses =
            [Address::Lane(LaneId(u16::MAX)), Address::Session(SessionId::from_random(5)), Address::Events];
        for address in addresses {
            assert_eq!(from_wire(&to_wire(address)), Some(address));
        }
        assert_eq!(from_wire(&wire::Address { to: None }), None);
        let large = wire::Address { to: Some(wire::address::To::Lane(1 << 16)) };
        assert_eq!(from_wire(&large), None);
    }

    #[test]
    fn frames_keep_their_bytes() {
        let addresses = [
            Address::Lane(LaneId(3)),
            Address::Session(SessionId::from_random(7)),
            Address::Events,
            Address::Stats,
            Address::Servers,
        ];
        check("frame", |golden| {
            let hello = wire::Frame { hello: Some(MemberId(7).hello()), ..wire::Frame::default() };
            golden.bytes("hello", &hello.encode_to_vec());
            let (begun, ended) = addresses.split_at(3);
            let listening = wire::Listening {
                version: 5,
                begun: begun.iter().copied().map(to_wire).collect(),
                ended: ended.iter().copied().map(to_wire).collect(),
            };
            let messages = encode(&[message(1)], 1_024).unwrap().remove(0);
            let address = Some(to_wire(addresses[0]));
            let parcels = vec![wire::Parcel { address, messages }];
            let frame = wire::Frame { hello: None, listening: Some(listening), heard: 4, parcels };
            let stored = golden.bytes("frame", &frame.encode_to_vec());
            assert_eq!(wire::Frame::decode(&*stored).unwrap(), frame);
            assert_eq!(decode(&frame.parcels[0].messages).unwrap(), [message(1)]);
        });
    }

    #[test]
    fn a_large_batch_goes_in_pieces() {
        let messages: Vec<Message> = [600, 600, 100, 100, 800, 10].map(message).to_vec();
        let pieces = encode(&messages, 1_024).unwrap();
        let sizes: Vec<usize> = pieces.iter().map(|piece| decode(piece).unwrap().len()).collect();
        assert_eq!(sizes, [1, 2, 1, 1, 1]);
        let back: Vec<Message> = pieces.iter().flat_map(|piece| decode(piece).unwrap()).collect();
        assert_eq!(back, messages);
        assert_eq!(encode(&messages, 1 << 20).unwrap().len(), 1);
    }

    #[test]
    fn a_message_that_is_too_large_is_refused() {
        let refused = encode(&[message(1), message(1_024), message(1)], 1_024);
        assert!(matches!(refused, Err(BusError::TooLarge { size: 1_025.., max: 1_024 })), "{refused:?}");
    }
}
