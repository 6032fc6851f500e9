//! The fields of requests for tasks, and the tasks that they become.

use std::collections::BTreeSet;
use std::time::Duration;

use tasklane_core::id::{LaneId, LimitId, Name, TaskId};
use tasklane_core::policy::{
    Concurrency, ConcurrencyLimit, QueueBinding, QueuePolicy, Rate, RateLimit, Strategy, UniqueRule,
    WhenFull, WhenReached,
};
use tasklane_core::task::{NewTask, OwnLimit, Payload, TaskHead};
use tasklane_core::time::Timestamp;
use tasklane_runtime::request::{FieldError, Placement, RequestLimits, TaskRequest};

const NOW: Timestamp = Timestamp::from_millis(1_800_000_000_000);

fn read(json: &str) -> Result<TaskRequest, FieldError> {
    TaskRequest::from_json(json.as_bytes())
}

/// A request with one more field.
fn with(field: &str) -> String {
    format!(r#"{{"taskName":"hi","taskType":"SHELL",{field}}}"#)
}

fn place(request: TaskRequest, policy: &QueuePolicy) -> Result<NewTask, FieldError> {
    place_in(&QueueBinding::Lane(LaneId(3)), request, policy)
}

fn place_in(
    binding: &QueueBinding,
    request: TaskRequest,
    policy: &QueuePolicy,
) -> Result<NewTask, FieldError> {
    let namespace = Name::new("default").expect("a valid name");
    let limits = RequestLimits::default();
    let place = Placement {
        namespace: &namespace,
        binding,
        policy,
        now: NOW,
        random: 7,
        limits: &limits,
        archived: false,
    };
    request.into_task(place)
}

fn task(json: &str) -> Result<NewTask, FieldError> {
    place(read(json)?, &QueuePolicy::default())
}

#[test]
fn consistent_hashing_goes_by_the_task_where_no_key_is_given() {
    let json = |number: u32| format!(r#"{{"taskName":"t","taskType":"NOOP","requestId":"r{number}"}}"#);
    let bucket = |strategy, json: &str| {
        let policy = QueuePolicy { strategy, ..QueuePolicy::default() };
        place(read(json).unwrap(), &policy).unwrap().spec.head.hash_bucket
    };
    let hashing = Strategy::ConsistentHash { when_full: WhenFull::Next };
    let buckets: BTreeSet<u16> = (0..20).filter_map(|number| bucket(hashing, &json(number))).collect();
    assert!(buckets.len() > 10, "tasks are spread: {buckets:?}");
    assert_eq!(bucket(hashing, &json(1)), bucket(hashing, &json(1)));
    assert_eq!(bucket(Strategy::LeastLoad, &json(1)), None, "other strategies need no bucket");
    let with_key = r#"{"taskName":"t","taskType":"NOOP","hashKey":"k"}"#;
    assert_eq!(bucket(hashing, with_key), Some(TaskHead::bucket_of("k")));
}

#[test]
fn every_field_is_understood() {
    let request = read(
        r#"{"taskName":"hi","taskType":"PYTHON_SCRIPT","payload":"print(6*7)","executionTimeout":60,
            "retryPolicy":{"maxRetries":4,"retryDelay":"5s","backoffRate":1.5,"maxDelay":"1m","jitter":0.25},
            "requestId":"r-1","queue":"q","priority":9,"runAt":"2027-01-15T09:00:00+01:00",
            "metadata":{"k":"v"},"labels":{"gpu":"yes"},"hashKey":"h","startTimeout":"1h","progressTimeout":30.5}"#,
    )
    .unwrap();
    assert_eq!(read(&with(r#""priority":7.0"#)).unwrap().priority.get(), 7);
    assert_eq!(request.task_name, "hi");
    assert_eq!(request.payload, Payload::Text("print(6*7)".into()));
    assert_eq!(request.execution_timeout, Some(Duration::from_mins(1)));
    assert_eq!(request.retry.max_retries, Some(4));
    assert_eq!(request.retry.delay, Some(Duration::from_secs(5)));
    assert_eq!(request.retry.backoff_percent, Some(150));
    assert_eq!(request.retry.delay_max, Some(Duration::from_mins(1)));
    assert_eq!(request.retry.jitter_percent, Some(25));
    assert_eq!(request.run_at, Some(Timestamp::from_millis(1_800_000_000_000)));
    assert_eq!(request.priority.get(), 9);
    assert_eq!(request.start_timeout, Some(Duration::from_hours(1)));
    assert_eq!(request.progress_timeout, Some(Duration::from_millis(30_500)));
    assert_eq!(request.metadata["k"], "v");
    assert_eq!(request.labels["gpu"], "yes");
    assert_eq!(request.hash_key.as_deref(), Some("h"));
    assert_eq!(request.queue.as_str(), "q");
}

#[test]
fn a_payload_that_is_not_text_is_kept_as_written() {
    let big = r#"{"b": 1, "a":[12345678901234567890123, 1.0]}"#;
    assert_eq!(read(&with(&format!(r#""payload":{big}"#))).unwrap().payload, Payload::Json(big.into()));
    assert_eq!(read(&with(r#""payload":"a\n\u00e9""#)).unwrap().payload, Payload::Text("a\né".into()));
    assert_eq!(read(&with(r#""payload":null"#)).unwrap().payload, Payload::default());
}

#[test]
fn errors_name_the_field_and_a_stable_code() {
    let cases = [
        ("{", "", "invalid_json"),
        (r#"{"taskName":"a","taskType":"b"} x"#, "", "invalid_json"),
        ("[]", "", "wrong_type"),
        (r#"["hi","SHELL"]"#, "", "wrong_type"),
        (&with(r#""retryPolicy":[1]"#), "retryPolicy", "wrong_type"),
        (r#"{"taskName":"hi"}"#, "taskType", "missing_field"),
        (&with(r#""colour":"red""#), "colour", "unknown_field"),
        (&with(r#""retryPolicy":{"maxretries":1}"#), "retryPolicy.maxretries", "unknown_field"),
        (&with(r#""queue":"a","queue":"b""#), "queue", "duplicate_field"),
        (&with(r#""queue":"a b""#), "queue", "invalid_value"),
        (&with(r#""queue":5"#), "queue", "wrong_type"),
        (&with(r#""priority":"9""#), "priority", "wrong_type"),
        (&with(r#""priority":10"#), "priority", "invalid_value"),
        (&with(r#""priority":-1"#), "priority", "invalid_value"),
        (&with(r#""priority":1.5"#), "priority", "wrong_type"),
        (&with(r#""executionTimeout":0"#), "executionTimeout", "invalid_value"),
        (&with(r#""executionTimeout":"soon""#), "executionTimeout", "invalid_value"),
        (&with(r#""executionTimeout":[]"#), "executionTimeout", "wrong_type"),
        (&with(r#""retryCount":-1"#), "retryCount", "invalid_value"),
        (&with(r#""retryPolicy":{"backoffRate":0.5}"#), "retryPolicy.backoffRate", "invalid_value"),
        (&with(r#""retryPolicy":{"jitter":1.5}"#), "retryPolicy.jitter", "invalid_value"),
        (&with(r#""retryPolicy":{"jitter":"x"}"#), "retryPolicy.jitter", "wrong_type"),
        (&with(r#""retryCount":1,"retryPolicy":{}"#), "retryCount", "conflicting_fields"),
        (&with(r#""retryCount":1,"retryPolicy":{"maxRetries":2}"#), "retryCount", "conflicting_fields"),
        (&with(r#""runAt":"tomorrow""#), "runAt", "invalid_value"),
        (&with(r#""runAt":"2027-01-15T09:00:00""#), "runAt", "invalid_value"),
        (&with(r#""metadata":{"k":1}"#), "metadata.k", "wrong_type"),
    ];
    for (json, field, code) in cases {
        let error = read(json).unwrap_err();
        assert_eq!((error.field.as_str(), error.code), (field, code), "{json}: {error}");
        assert!(!error.message.is_empty());
        assert!(code == "invalid_json" || !error.message.contains("line"), "{error}");
    }
}

#[test]
fn sizes_are_checked_before_a_task_is_made() {
    let long = |n| "x".repeat(n);
    let many: Vec<String> = (0..33).map(|n| format!(r#""k{n}":"""#)).collect();
    let cases = [
        (r#"{"taskName":"","taskType":"SHELL"}"#.into(), "taskName", "invalid_value"),
        (with(&format!(r#""requestId":"{}""#, long(257))), "requestId", "invalid_value"),
        (with(r#""hashKey":"""#), "hashKey", "invalid_value"),
        (with(&format!(r#""payload":"{}""#, long((256 << 10) + 1))), "payload", "payload_too_large"),
        (
            with(&format!(r#""metadata":{{"{}":"v"}}"#, long(129))),
            &*format!("metadata.{}", long(40)),
            "invalid_value",
        ),
        (with(&format!(r#""metadata":{{"k":"{}"}}"#, long(1025))), "metadata.k", "invalid_value"),
        (with(&format!(r#""metadata":{{{}}}"#, many.join(","))), "metadata", "invalid_value"),
        (with(&format!(r#""labels":{{"k":"{}"}}"#, long(257))), "labels.k", "invalid_value"),
        (with(r#""runAt":"2027-01-15T09:00:00Z","delay":5"#), "delay", "conflicting_fields"),
    ];
    for (json, field, code) in cases {
        let error = task(&json).unwrap_err();
        assert_eq!((error.field.as_str(), error.code), (field, code), "{error}");
    }
    task(&with(&format!(r#""payload":"{}""#, long(256 << 10)))).unwrap();
}

/// The server accepted it, and then the command line could not parse the server's answer.
#[test]
fn a_payload_is_nested_a_hundred_levels_at_most() {
    let nested = |depth| with(&format!(r#""payload":{}{}"#, "[".repeat(depth), "]".repeat(depth)));
    task(&nested(100)).unwrap();
    for depth in [101, 128, 100_000] {
        let error = task(&nested(depth)).unwrap_err();
        assert_eq!((error.field.as_str(), error.code), ("payload", "invalid_value"));
        assert_eq!(error.message, "must not be nested deeper than 100 levels");
    }
    task(&with(&format!(r#""payload":"{}""#, "[".repeat(1000)))).unwrap();
}

#[test]
fn a_time_that_is_too_late_is_told_the_latest() {
    let error = |time: &str| read(&with(&format!(r#""runAt":"{time}""#))).unwrap_err().message;
    for late in ["9999-12-31T23:59:59Z", "9999-12-31T00:00:00+00:00"] {
        assert_eq!(error(late), format!("must be a time up to 9999-12-30T22:00:00Z, not {late:?}"));
    }
    for wrong in ["9999-12-31", "9999-12-31T23:59:59", "soon", "10000-01-01T00:00:00Z"] {
        assert!(error(wrong).starts_with("must be a time with its offset, as "), "{wrong}: {}", error(wrong));
    }
    read(&with(r#""runAt":"9999-12-30T22:00:00Z""#)).unwrap();
}

#[test]
fn names_have_no_control_characters() {
    let cases = [
        (r#"{"taskName":"a\u0000","taskType":"SHELL"}"#.into(), "taskName", "U+0000"),
        (r#"{"taskName":"a\nb","taskType":"SHELL"}"#.into(), "taskName", "U+000A"),
        (with(r#""taskType":"a\u0000""#).replacen(r#""taskType":"SHELL","#, "", 1), "taskType", r"'\0'"),
        (with(r#""queue":"a\u0000""#), "queue", r"'\0'"),
        (with(r#""requestId":"\u001b[1m""#), "requestId", "U+001B"),
        (with(r#""hashKey":"\u007f""#), "hashKey", "U+007F"),
        (with(r#""metadata":{"a\u0000":"b"}"#), r"metadata.a\u{0}", "U+0000"),
        (with(r#""metadata":{"a":"\u0000"}"#), "metadata.a", "U+0000"),
        (with(r#""labels":{"a\t":"b"}"#), r"labels.a\t", "U+0009"),
        (with(r#""labels":{"a":"\u0085"}"#), "labels.a", "U+0085"),
    ];
    for (json, field, character) in cases {
        let error = task(&json).unwrap_err();
        assert_eq!((error.field.as_str(), error.code), (field, "invalid_value"), "{json}");
        assert!(error.message.contains(character), "{error}");
    }
    // Values of metadata, and payloads, are free text.
    task(&with(r#""metadata":{"note":"one\ntwo\t"},"payload":"\u0000""#)).unwrap();
}

#[test]
fn what_a_request_does_not_say_is_as_the_queue_says() {
    let mut policy = QueuePolicy { len_max: Some(5), ..QueuePolicy::default() };
    policy.execution_timeout = Duration::from_secs(9);
    policy.retry.max_retries = 8;
    let task = place(read(&with(r#""retryPolicy":{"retryDelay":1}"#)).unwrap(), &policy).unwrap();
    let head = &task.spec.head;
    assert_eq!(head.execution_timeout, Duration::from_secs(9));
    assert_eq!((head.retry.max_retries, head.retry.delay), (8, Duration::from_secs(1)));
    assert_eq!(head.retry.backoff_percent, policy.retry.backoff_percent);
    assert_eq!(task.queue_len_max, Some(5));
    let own = place(read(&with(r#""retryCount":0,"executionTimeout":"2s""#)).unwrap(), &policy).unwrap();
    assert_eq!(own.spec.head.retry.max_retries, 0);
    assert_eq!(own.spec.head.execution_timeout, Duration::from_secs(2));
}

#[test]
fn a_task_is_due_when_asked_for_but_never_before_it_was_submitted() {
    let due = |field: &str| task(&with(field)).unwrap().due;
    assert_eq!(due(r#""delay":"90s""#), NOW + Duration::from_secs(90));
    assert_eq!(due(r#""runAt":"2099-01-01T00:00:00Z""#), Timestamp::from_millis(4_070_908_800_000));
    assert_eq!(due(r#""runAt":"1999-01-01T00:00:00Z""#), NOW);
    assert_eq!(due(r#""priority":1"#), NOW);
}

#[test]
fn the_same_request_id_gives_the_same_task_and_tells_other_requests_apart() {
    let request = |field: &str| task(&with(&format!(r#""requestId":"r",{field}"#))).unwrap();
    let first = request(r#""payload":"a""#);
    assert_eq!(first.id.lane(), LaneId(3));
    assert_eq!(first.id, request(r#""payload":"b""#).id);
    let others = [
        r#""payload":"b""#,
        r#""payload":["a"]"#,
        r#""payload":"a","priority":6"#,
        r#""payload":"a","delay":1"#,
        r#""payload":"a","retryCount":1"#,
        r#""payload":"a","metadata":{"k":"v"}"#,
        r#""payload":"a","labels":{"k":"v"}"#,
        r#""payload":"a","startTimeout":1"#,
        r#""payload":"a","progressTimeout":1"#,
    ];
    let mut seen = vec![first.fingerprint.hash];
    for other in others {
        let hash = request(other).fingerprint.hash;
        assert!(!seen.contains(&hash), "{other}");
        seen.push(hash);
    }
    assert_eq!(first.fingerprint, request(r#""payload":"a","priority":5"#).fingerprint);
    let mut retry = read(&with(r#""requestId":"r","payload":"a""#)).unwrap();
    retry.parent = Some(TaskId::from_random(1));
    assert!(!seen.contains(&retry.fingerprint().hash));
}

const TENANT: &str = "{{ metadata.tenant }}";

fn at_once(key: Option<&str>, limit: u32) -> ConcurrencyLimit {
    let concurrency = Concurrency { limit, when_reached: WhenReached::Wait };
    ConcurrencyLimit { key: key.map(str::to_owned), concurrency }
}

fn per_minute(key: Option<&str>, limit: u32) -> RateLimit {
    let rate = Rate { limit, per: Duration::from_mins(1), burst: 1 };
    RateLimit { key: key.map(str::to_owned), rate }
}

fn flow(policy: &QueuePolicy, fields: &str) -> Vec<(LimitId, String, Option<OwnLimit>)> {
    let request = read(&with(fields)).expect("a valid request");
    let task = place(request, policy).expect("a valid task");
    task.spec.head.flow.iter().map(|flow| (flow.limit, flow.key.to_string(), flow.own)).collect()
}

#[test]
fn a_task_is_counted_under_the_keys_of_its_queue() {
    let policy = QueuePolicy {
        concurrency: vec![at_once(None, 9), at_once(Some(TENANT), 2)],
        rate: vec![per_minute(Some(TENANT), 2), per_minute(Some("{{ taskType }}"), 3)],
        ..QueuePolicy::default()
    };
    let expected = [
        (LimitId::of(TENANT), "t1".to_owned(), None),
        (LimitId::of("{{ taskType }}"), "SHELL".to_owned(), None),
    ];
    assert_eq!(flow(&policy, r#""metadata":{"tenant":"t1"}"#), expected);
    assert_eq!(flow(&policy, r#""metadata":{"tenant":""}"#), expected[1..], "an empty key counts nothing");
    let error = place(read(&with(r#""priority":1"#)).unwrap(), &policy).unwrap_err();
    assert_eq!((error.field.as_str(), error.code), ("queue", "invalid_value"));
    assert!(error.message.contains("metadata.tenant is not given"), "{error}");
}

#[test]
fn a_task_may_bring_limits_of_its_own() {
    let policy = QueuePolicy { concurrency: vec![at_once(Some(TENANT), 2)], ..QueuePolicy::default() };
    let fields = r#""metadata":{"tenant":"t1"},
        "concurrency":[{"key":"{{ metadata.tenant }}","limit":1},{"key":"api","limit":3,"whenFull":"cancelNewest"}],
        "rate":[{"key":"api","limit":10,"per":"1m"}]"#;
    let own = |limit, when_reached| Some(OwnLimit::Concurrency(Concurrency { limit, when_reached }));
    let rate = per_minute(None, 10).rate;
    let expected = [
        (LimitId::of(TENANT), "t1".to_owned(), own(1, WhenReached::Wait)),
        (LimitId::of("api"), "api".to_owned(), own(3, WhenReached::CancelNewest)),
        (LimitId::of_own_rate("api", &rate), "api".to_owned(), Some(OwnLimit::Rate(rate))),
    ];
    assert_eq!(flow(&policy, fields), expected, "the same template is counted once");
}

#[test]
fn rules_about_keys_name_the_field() {
    let plain = QueuePolicy::default();
    let spread = QueuePolicy { spread: Some(TENANT.to_owned()), ..QueuePolicy::default() };
    let unkeyed = QueuePolicy { spread: Some(String::new()), ..QueuePolicy::default() };
    for (policy, fields, field, part) in [
        (&plain, r#""concurrency":[{"limit":1}]"#, "concurrency[0].key", "is required"),
        (&plain, r#""rate":[{"limit":1,"per":1}]"#, "rate[0].key", "is required"),
        (
            &plain,
            r#""concurrency":[{"key":"a","limit":1},{"key":"a","limit":2}]"#,
            "concurrency[1].key",
            "differ",
        ),
        (&plain, r#""concurrency":[{"key":"{{ a }}","limit":1}]"#, "concurrency[0].key", "\"a\""),
        (
            &plain,
            r#""concurrency":[{"key":"{{ metadata.x }}","limit":1}]"#,
            "concurrency[0].key",
            "metadata.x",
        ),
        (&plain, r#""rate":[{"key":"a","limit":1,"per":"367d"}]"#, "rate[0].per", "366 days"),
        (
            &plain,
            r#""concurrency":[{"key":"a","limit":1001,"whenFull":"cancelNewest"}]"#,
            "concurrency[0].limit",
            "between 1 and 1000",
        ),
        (&plain, r#""unique":{"key":"a","until":"8d"}"#, "unique.until", "604800"),
        (&plain, r#""unique":{"key":"{{"}"#, "unique.key", "syntax"),
        (
            &spread,
            r#""metadata":{"tenant":"t"},"concurrency":[{"key":"a","limit":1}]"#,
            "concurrency[0].key",
            TENANT,
        ),
        (&unkeyed, r#""concurrency":[{"key":"a","limit":1}]"#, "concurrency[0].key", "without a key"),
    ] {
        let binding = match &policy.spread {
            Some(key) => QueueBinding::Spread { lanes: 4, key: key.clone() },
            None => QueueBinding::Lane(LaneId(0)),
        };
        let error = place_in(&binding, read(&with(fields)).unwrap(), policy).unwrap_err();
        assert!(error.field == field && error.message.contains(part), "{fields}: {error}");
    }
    for fields in [
        r#""concurrency":[{"key":"a"}]"#,
        r#""concurrency":[{"key":"a","limit":0}]"#,
        r#""concurrency":[{"key":"a","limit":1,"whenFull":"next"}]"#,
        r#""concurrency":[["a",1]]"#,
        r#""unique":{"until":"1m"}"#,
        r#""unique":{"key":"a","until":"soon"}"#,
        r#""unique":{"key":"a","until":0}"#,
    ] {
        assert!(read(&with(fields)).is_err(), "{fields}");
    }
}

#[test]
fn a_policy_is_checked_before_it_is_written() {
    let limits = RequestLimits::default();
    let rule = |key: &str| UniqueRule { key: key.to_owned(), hold_for: None };
    let plain = QueuePolicy::default;
    for (policy, field) in [
        (
            QueuePolicy { concurrency: vec![at_once(Some("{{ x }}"), 1)], ..plain() },
            "policy.concurrency[0].key",
        ),
        (
            QueuePolicy { rate: vec![per_minute(None, 1), per_minute(None, 2)], ..plain() },
            "policy.rate[1].key",
        ),
        (QueuePolicy { concurrency: vec![at_once(Some("a"), 1); 5], ..plain() }, "policy.concurrency"),
        (QueuePolicy { unique: Some(rule("{{ x }}")), ..plain() }, "policy.unique.key"),
        (QueuePolicy { spread: Some("{{ x }}".to_owned()), ..plain() }, "policy.spread"),
        (QueuePolicy { spread: Some("a".to_owned()), len_max: Some(1), ..plain() }, "policy.maxLength"),
        (
            QueuePolicy { spread: Some(TENANT.to_owned()), concurrency: vec![at_once(None, 1)], ..plain() },
            "policy.concurrency[0].key",
        ),
    ] {
        assert_eq!(limits.check_policy(&policy).unwrap_err().field, field);
    }
    let fine = QueuePolicy {
        spread: Some(TENANT.to_owned()),
        concurrency: vec![at_once(Some(TENANT), 1)],
        unique: Some(rule("x")),
        ..plain()
    };
    limits.check_policy(&fine).unwrap();
}

#[test]
fn a_unique_key_is_taken_for_a_time_or_until_the_end() {
    let policy = QueuePolicy {
        unique: Some(UniqueRule { key: TENANT.to_owned(), hold_for: None }),
        ..QueuePolicy::default()
    };
    let unique = |policy: &QueuePolicy, fields: &str| {
        let unique = place(read(&with(fields)).unwrap(), policy).unwrap().unique;
        unique.map(|unique| (unique.key, unique.until))
    };
    let tenant = r#""metadata":{"tenant":"t1"}"#;
    assert_eq!(unique(&policy, tenant), Some(("t1".to_owned(), None)));
    let own = format!(r#"{tenant},"unique":{{"key":"own","until":"1m"}}"#);
    assert_eq!(unique(&policy, &own), Some(("own".to_owned(), Some(NOW + Duration::from_mins(1)))));
    assert_eq!(unique(&QueuePolicy::default(), tenant), None);
    assert_eq!(unique(&policy, r#""metadata":{"tenant":""}"#), None);
}

#[test]
fn a_queue_that_is_spread_keeps_each_key_in_one_lane() {
    let binding = QueueBinding::Spread { lanes: 16, key: TENANT.to_owned() };
    let policy = QueuePolicy { spread: Some(TENANT.to_owned()), ..QueuePolicy::default() };
    let lane = |fields: &str| place_in(&binding, read(&with(fields)).unwrap(), &policy).unwrap().id.lane();
    let of_tenant = |n: u32| lane(&format!(r#""metadata":{{"tenant":"t{n}"}},"requestId":"r""#));
    let lanes: BTreeSet<LaneId> = (0..50).map(of_tenant).collect();
    assert!(lanes.len() > 8, "{lanes:?}");
    assert_eq!(of_tenant(1), lane(r#""metadata":{"tenant":"t1"},"requestId":"other""#));
    let id = |fields: &str| place_in(&binding, read(&with(fields)).unwrap(), &policy).unwrap().id;
    let one = id(r#""metadata":{"tenant":"t1"},"requestId":"r""#);
    assert_ne!(one, id(r#""metadata":{"tenant":"t2"},"requestId":"r""#), "request ids are of a tenant");
    assert_eq!(one, id(r#""metadata":{"tenant":"t1"},"requestId":"r""#));
    let unique = r#""metadata":{"tenant":""},"unique":{"key":"nightly"}"#;
    let other = format!(r#"{unique},"requestId":"r7""#);
    assert_eq!(lane(unique), lane(&other), "tasks with the same unique key share a lane");
    let by_request = |n: u32| lane(&format!(r#""metadata":{{"tenant":""}},"requestId":"r{n}""#));
    assert!((0..50).map(by_request).collect::<BTreeSet<_>>().len() > 8);
    assert_eq!(by_request(1), by_request(1));
}

/// Copied samples must be complete.
#[test]
fn the_samples_of_the_docs_are_whole() {
    let docs = include_str!("../../../../docs/executors.md");
    let samples = docs.split("```json\n").skip(1).map(|rest| rest.split("```").next().unwrap());
    let mut count = 0;
    for sample in samples {
        for one in serde_json::Deserializer::from_str(sample).into_iter::<serde_json::Value>() {
            task(&one.unwrap().to_string()).unwrap_or_else(|error| panic!("{error}: {sample}"));
            count += 1;
        }
    }
    assert_eq!(count, 5);
}

/// The answer said "must be text", or had 309 digits.
#[test]
fn a_huge_number_is_refused_by_the_rule_of_its_field() {
    let read = |field: &str, number: &str| {
        let json = format!(r#"{{"taskName":"a","taskType":"NOOP","{field}":{number}}}"#);
        TaskRequest::from_json(json.as_bytes()).unwrap_err()
    };
    for field in ["delay", "executionTimeout", "priority", "retryCount"] {
        let error = read(field, "1e999");
        assert_eq!((error.field.as_str(), error.code), (field, "invalid_value"), "{error}");
        assert_eq!(error.message, "must not have a number beyond 1.8e308");
        let error = read(field, "1e308");
        assert_eq!((error.field.as_str(), error.code), (field, "invalid_value"), "{error}");
        assert!(error.message.ends_with("not 1e308"), "{error}");
    }
    assert_eq!(read("delay", "1e308").message, "must be between 0 and 3153600000 seconds, not 1e308");
}
