//! Stored numbers and names of this crate stay, and its codec writes what golden files hold.

#![allow(clippy::unwrap_used, reason = "in tests a panic is an answer")]

use tasklane_core::policy::VersionedPolicy;
use tasklane_ports::{DocumentKind, LogStream, codec};
use tasklane_testkit::golden::{check, encode};

#[test]
fn stored_numbers_and_names_stay() {
    check("port", |golden| {
        for kind in DocumentKind::ALL {
            let title = match kind {
                DocumentKind::Schedule => "schedules",
                DocumentKind::Lock => "locks",
                DocumentKind::Cancel => "cancelled composites",
                DocumentKind::Workflow => "workflows",
                DocumentKind::Executor => "executors",
                DocumentKind::Analyzer => "analyzers",
                DocumentKind::Secret => "secrets",
                DocumentKind::Deployment => "the deployment",
            };
            golden.text(&format!("DocumentKind of {title}"), format!("{} {}", kind.code(), kind.as_str()));
        }
        for (title, stream) in
            [("stdout", LogStream::Stdout), ("stderr", LogStream::Stderr), ("remarks", LogStream::System)]
        {
            golden.text(&format!("LogStream of {title}"), stream.code());
            assert_eq!(LogStream::from_code(stream.code()), Some(stream));
        }
        assert_eq!(LogStream::from_code(4), None);
    });
}

/// The golden files of other crates hold what the test kit encodes.
#[test]
fn the_codec_and_the_test_kit_write_the_same_bytes() {
    let policy = VersionedPolicy { version: 1, ..VersionedPolicy::default() };
    let stored = codec::encode(&policy);
    assert_eq!(stored, encode(&policy));
    assert_eq!(codec::decode::<VersionedPolicy>(&stored).unwrap(), policy);
}
