//! Packed values, keys and payloads keep their bytes: see `tasklane_testkit::golden`.

use std::time::Duration;

use tasklane_core::command::Command;
use tasklane_core::commit::{GroupOutcome, RecordKey, RecordKind, SubmitOutcome};
use tasklane_core::id::{AttemptNo, LaneId, LimitId, Seq, SessionId};
use tasklane_core::member::Role;
use tasklane_core::message::Message;
use tasklane_core::policy::QueuePolicy;
use tasklane_core::status::{Status, Version};
use tasklane_core::task::{AttemptOutcome, FlowKey, Unique};
use tasklane_core::time::Timestamp;
use tasklane_ports::conformance::fixture::{TaskBuilder, ended};
use tasklane_ports::{
    Address, Document, DocumentKey, DocumentKind, LogChunk, LogPosition, LogStream, TaskCursor, codec,
};
use tasklane_testkit::golden::check;

use crate::bus::channel_of;
use crate::coordinator::{stored_session, ttl_and_role};
use crate::documents::{document, name_of};
use crate::keys::{LaneKeys, MemberKeys, SharedKeys};
use crate::logs::{add_chunk, chunk_of};
use crate::payload::{Batch, messages};
use crate::{layout, payload};

const LANE: LaneId = LaneId(3);
const AT: Timestamp = Timestamp::from_micros(1_800_000_000_000_001);

fn task() -> TaskBuilder {
    let flow = FlowKey { limit: LimitId::QUEUE, key: "k".into(), own: None };
    TaskBuilder::new(LANE, 1)
        .queue("mail")
        .created_at(AT)
        .delay(1_500)
        .start_timeout(2_000)
        .fingerprint(1, u64::MAX - 1)
        .with(|head, body| {
            head.flow = vec![flow];
            body.name = "a mail".to_owned();
        })
}

#[test]
fn packed_values_keep_their_bytes() {
    check("layout", |golden| {
        let small = task().build();
        let large = task().payload_bytes(5_000).build();
        let packed = golden.bytes("state", &layout::packed(&small, &small.state()));
        let (spec, body) = layout::spec(&small.spec);
        assert_eq!(body, b"");
        let spec = golden.bytes("spec with its body", &spec);
        let state = [&7_u64.to_be_bytes(), packed.as_slice()].concat();
        let row = layout::row(small.id, &state, &spec, None).unwrap();
        assert_eq!((row.id, row.seq, &row.state), (small.id, Seq(7), &small.state()));
        assert_eq!((&row.head, row.body.as_ref()), (&small.spec.head, Some(&small.spec.body)));
        let (spec, body) = layout::spec(&large.spec);
        let spec = golden.bytes("spec with its body apart", &spec);
        let row = layout::row(large.id, &state, &spec, Some(&body)).unwrap();
        assert_eq!((&row.head, row.body.as_ref()), (&large.spec.head, Some(&large.spec.body)));
        let mut done = small.state();
        (done.status, done.attempt, done.finished_at) = (Status::Success, AttemptNo(258), Some(AT));
        golden.bytes("part of a state that changes", &layout::moving(&done));

        let attempts = [ended(1, AttemptOutcome::Lost), ended(2, AttemptOutcome::Failed)];
        let stored = golden.bytes("ended attempts", &layout::ended(&attempts));
        assert_eq!(layout::attempts_of(&stored).unwrap(), attempts);
        let unique = |until| layout::unique(&Unique::new("u", until), AT);
        golden.bytes("unique key until the end", &unique(None));
        golden.bytes("unique key until a time", &unique(Some(AT)));
        let record = RecordKey { kind: RecordKind::AppliedPolicy, key: "default/mail".to_owned() };
        let stored = golden.bytes("key of a record", &layout::record_key(&record));
        assert_eq!(layout::record_key_of(&stored).unwrap(), record);
        let cursor = TaskCursor { created_at: AT, id: small.id };
        let stored = golden.bytes("entry by creation time", &layout::cursor_key(cursor));
        assert_eq!(layout::cursor_of(&stored).unwrap(), cursor);

        // What scripts put together.
        let command = Command::Cancel { task: small.id };
        let row = [&7_u64.to_be_bytes(), codec::encode(&command).as_slice()].concat();
        let row = layout::inbox_row(&golden.bytes("inbox row", &row)).unwrap();
        assert_eq!((row.seq, row.command), (Seq(7), command));
        let policy = codec::encode(&QueuePolicy::default());
        let policy = [&5_u64.to_be_bytes(), &2_u64.to_be_bytes(), policy.as_slice()].concat();
        let policy = layout::policy_of(&golden.bytes("policy", &policy)).unwrap();
        assert_eq!((policy.version, policy.policy), (2, QueuePolicy::default()));
        let version = layout::version_key(Version { status: Status::Running, attempt: AttemptNo(2) });
        let outcomes =
            [b"A".as_slice(), b"C", &7_u64.to_be_bytes(), b"DRE", small.id.0.as_bytes(), b"FNM", &version];
        let outcomes = golden.bytes("outcomes of a commit", &outcomes.concat());
        let outcomes = layout::group_outcomes(&outcomes).unwrap();
        let refused = |outcome| GroupOutcome::NotCreated(outcome);
        assert_eq!(
            outcomes,
            [
                GroupOutcome::Applied { seq: None },
                GroupOutcome::Applied { seq: Some(Seq(7)) },
                refused(SubmitOutcome::Duplicate),
                refused(SubmitOutcome::RequestIdReused),
                refused(SubmitOutcome::Exists { task: small.id }),
                refused(SubmitOutcome::QueueFull),
                GroupOutcome::Mismatch { found: None },
                GroupOutcome::Mismatch {
                    found: Some(Version { status: Status::Running, attempt: AttemptNo(2) })
                },
            ]
        );
    });
}

#[test]
fn sessions_documents_and_output_keep_their_bytes() {
    let role = Role::Server { address: "10.0.0.5:7070".to_owned(), bus: String::new() };
    let name = tasklane_ports::conformance::fixture::name;
    let key = DocumentKey { kind: DocumentKind::Lock, namespace: name("default"), id: name("a") };
    let chunk = LogChunk {
        task: task().id(),
        position: LogPosition { attempt: AttemptNo(2), number: 258 },
        stream: LogStream::Stderr,
        at: AT,
        bytes: b"\xffoops\n".to_vec(),
    };
    check("values", |golden| {
        let ttl = Duration::from_secs(15);
        let stored = golden.bytes("session", &stored_session(&"5".repeat(32), ttl, &role));
        assert_eq!(ttl_and_role(&stored).unwrap(), (ttl, role));
        golden.bytes("name of a document", name_of(&key.namespace, "a").as_bytes());
        for due in [None, Some(AT)] {
            let time = due.map(layout::time_key);
            let time = time.as_ref().map_or(&[][..], |time| time);
            let size = u8::try_from(time.len()).unwrap();
            let stored = [&7_u64.to_be_bytes(), &[size][..], time, b"value"].concat();
            let title = if due.is_some() { "document with a time" } else { "document" };
            let stored = document(key.clone(), &golden.bytes(title, &stored)).unwrap();
            assert_eq!(stored, Document { key: key.clone(), version: 7, due, value: b"value".to_vec() });
        }
        let mut call = redis::cmd("APPEND");
        add_chunk(&mut call, 1, &chunk);
        let args: Vec<&[u8]> = call
            .args_iter()
            .filter_map(|arg| match arg {
                redis::Arg::Simple(bytes) => Some(bytes),
                _ => None,
            })
            .collect();
        let stored = golden.bytes("output", &args[2..].concat());
        assert_eq!(chunk_of(chunk.task, &stored).unwrap(), chunk);
    });
}

#[test]
fn keys_channels_and_payloads_stay() {
    check("keys", |golden| {
        let lane = LaneKeys::new("tl", LANE);
        golden.text("lane", lane.all().collect::<Vec<_>>().join("\n"));
        golden.text("log", lane.log_of(task().id()));
        let SharedKeys { meta, lanes, bindings, policies, policy_changes, policy_revision, .. } =
            SharedKeys::new("tl");
        golden.text("shared", [meta, lanes, bindings, policies, policy_changes, policy_revision].join("\n"));
        for kind in DocumentKind::ALL {
            let shared = SharedKeys::new("tl");
            let keys = shared.documents(kind);
            let keys = [&keys.values, &keys.names, &keys.times, &keys.version].map(String::as_str);
            golden.text(&format!("documents {}", kind.code()), keys.join("\n"));
        }
        let members = MemberKeys::new("tl");
        golden
            .text("members", members.all().chain([members.channel.as_str()]).collect::<Vec<_>>().join("\n"));
        let addresses = [
            Address::Lane(LANE),
            Address::Session(SessionId::from_random(7)),
            Address::Events,
            Address::Stats,
            Address::Servers,
        ];
        for (number, address) in addresses.into_iter().enumerate() {
            golden.text(&format!("channel {number}"), channel_of("tl", address).0);
        }
        let mut batch = Batch::default();
        let hint = Message::Hint { lane: LANE };
        batch.add(&codec::encode(&hint));
        batch.add(&codec::encode(&hint));
        let stored = golden.bytes("payload of a channel", &batch.payload());
        assert_eq!(messages(&stored).collect::<Vec<_>>(), [hint.clone(), hint]);
        assert_eq!(payload::len(&stored), 2);
    });
}
