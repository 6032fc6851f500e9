//! The suite of [`Documents`](crate::Documents). Numbers in the cases' docs are those of its promises.

/// One test for each case of the suite of documents. Takes an `async fn` that gives an `Option` of a
/// [`DocumentsEnv`](crate::conformance::DocumentsEnv) in a fresh, empty place.
#[macro_export]
macro_rules! documents_conformance {
    ($factory:expr) => {
        $crate::conformance_cases!(documents, run, $factory, {
            cases: [
                a_put_replaces_the_version_it_names,
                a_version_is_never_given_again,
                each_put_is_for_itself,
                of_many_at_once_one_wins,
                documents_are_listed_by_name,
                documents_are_listed_by_time,
                a_time_that_was_moved_is_found_where_it_is,
                kinds_are_kept_apart,
                any_bytes_are_kept,
                documents_survive_a_crash,
            ],
        });
    };
}

/// The cases.
pub mod cases {
    use futures::future::join_all;
    use tasklane_core::id::Name;

    use crate::conformance::DocumentsEnv;
    use crate::conformance::fixture::at;
    use crate::{
        Content, Document, DocumentKey, DocumentKind, DocumentList, Documents, DueList, PutDocument,
        PutOutcome,
    };

    const KIND: DocumentKind = DocumentKind::Schedule;

    fn name(text: &str) -> Name {
        Name::new(text).unwrap()
    }

    fn key(namespace: &str, id: &str) -> DocumentKey {
        DocumentKey { kind: KIND, namespace: name(namespace), id: name(id) }
    }

    fn put(id: &str, expected: u64, value: &str) -> PutDocument {
        let content = Some(Content { due: None, value: value.into() });
        PutDocument { key: key("default", id), expected, content }
    }

    fn put_due(id: &str, expected: u64, due: i64) -> PutDocument {
        let content = Some(Content { due: Some(at(due)), value: Vec::new() });
        PutDocument { key: key("default", id), expected, content }
    }

    fn removal(id: &str, expected: u64) -> PutDocument {
        PutDocument { key: key("default", id), expected, content: None }
    }

    /// The version that a put got.
    fn stored(outcomes: &[PutOutcome]) -> u64 {
        match outcomes {
            [PutOutcome::Stored { version }] => *version,
            other => panic!("expected a stored put, got {other:?}"),
        }
    }

    async fn store(documents: &dyn Documents, put: PutDocument) -> u64 {
        stored(&documents.put(&[put]).await.unwrap())
    }

    async fn get(documents: &dyn Documents, id: &str) -> Option<Document> {
        documents.get(&[key("default", id)]).await.unwrap().remove(0)
    }

    async fn conflict(documents: &dyn Documents, put: PutDocument) -> u64 {
        match documents.put(&[put]).await.unwrap()[..] {
            [PutOutcome::Conflict { current }] => current,
            ref other => panic!("not one conflict: {other:?}"),
        }
    }

    /// 1: and changes nothing where another version is stored.
    pub async fn a_put_replaces_the_version_it_names(env: &dyn DocumentsEnv) {
        let documents = &*env.documents();
        assert_eq!(get(documents, "a").await, None);
        assert_eq!(conflict(documents, put("a", 1, "too early")).await, 0);
        let first = store(documents, put("a", 0, "one")).await;
        assert_eq!(conflict(documents, put("a", 0, "new")).await, first);
        let second = store(documents, put("a", first, "two")).await;
        assert_eq!(conflict(documents, put("a", first, "late")).await, second);
        assert_eq!(conflict(documents, removal("a", first)).await, second);
        let found = get(documents, "a").await.unwrap();
        let expected = Document { key: key("default", "a"), version: second, due: None, value: "two".into() };
        assert_eq!(found, expected);
        store(documents, removal("a", second)).await;
        assert_eq!(get(documents, "a").await, None);
    }

    /// 2: also after its document was removed.
    pub async fn a_version_is_never_given_again(env: &dyn DocumentsEnv) {
        let documents = &*env.documents();
        let mut last = 0;
        for round in 0..3 {
            for id in ["a", "b"] {
                let made = store(documents, put(id, 0, "made")).await;
                let removed = store(documents, removal(id, made)).await;
                assert!(last < made && made < removed, "{last} {made} {removed} in round {round}");
                last = removed;
            }
        }
    }

    /// 1: a conflict does not stop the puts after it, and each put sees those before it.
    pub async fn each_put_is_for_itself(env: &dyn DocumentsEnv) {
        let documents = &*env.documents();
        let a = store(documents, put("a", 0, "one")).await;
        let outcomes =
            documents.put(&[put("a", 7, "no"), put("b", 0, "yes"), put("a", a, "yes")]).await.unwrap();
        assert_eq!(outcomes[0], PutOutcome::Conflict { current: a });
        let versions = [stored(&outcomes[1..2]), stored(&outcomes[2..])];
        let found =
            documents.get(&[key("default", "b"), key("default", "no"), key("default", "a")]).await.unwrap();
        assert_eq!(found[1], None);
        let found: Vec<_> = found.into_iter().flatten().map(|found| (found.version, found.value)).collect();
        assert_eq!(found, [(versions[0], b"yes".to_vec()), (versions[1], b"yes".to_vec())]);
        let twice = documents.put(&[removal("b", versions[0]), put("b", 0, "again")]).await.unwrap();
        assert!(matches!(twice[..], [PutOutcome::Stored { .. }, PutOutcome::Stored { .. }]), "{twice:?}");
        assert_eq!(documents.put(&[]).await.unwrap(), []);
        assert_eq!(documents.get(&[]).await.unwrap(), []);
    }

    /// 1: of racing puts one applies.
    pub async fn of_many_at_once_one_wins(env: &dyn DocumentsEnv) {
        let documents = env.documents();
        let mut version = 0;
        for round in 0..5 {
            let puts = (0..8).map(|n| {
                let (documents, put) = (documents.clone(), put("a", version, &format!("{round} {n}")));
                async move { (documents.put(std::slice::from_ref(&put)).await.unwrap().remove(0), put) }
            });
            let outcomes = join_all(puts).await;
            let won: Vec<_> =
                outcomes.iter().filter(|(outcome, _)| matches!(outcome, PutOutcome::Stored { .. })).collect();
            assert_eq!(won.len(), 1, "{outcomes:?}");
            let found = get(&*documents, "a").await.unwrap();
            assert_eq!(Some(found.value), won[0].1.content.clone().map(|content| content.value));
            version = found.version;
        }
    }

    /// 3.
    pub async fn documents_are_listed_by_name(env: &dyn DocumentsEnv) {
        let documents = &*env.documents();
        let ids = ["a", "a-b", "a.b", "ab", "b"];
        for id in ["b", "a.b", "ab", "a", "a-b"] {
            store(documents, put(id, 0, id)).await;
        }
        let elsewhere = PutDocument { key: key("other", "aa"), ..put("aa", 0, "elsewhere") };
        store(documents, elsewhere).await;
        let (mut found, mut after) = (Vec::new(), None);
        loop {
            let list = DocumentList { kind: KIND, namespace: name("default"), after, limit: 2 };
            let page = documents.by_name(list).await.unwrap();
            found.extend(page.iter().map(|document| document.key.id.to_string()));
            after = page.last().map(|document| document.key.id.clone());
            if page.len() < 2 {
                break;
            }
        }
        assert_eq!(found, ids);
        let none = DocumentList { kind: KIND, namespace: name("nobody"), after: None, limit: 10 };
        assert_eq!(documents.by_name(none).await.unwrap(), []);
    }

    async fn due(documents: &dyn Documents, until: i64, page: usize) -> Vec<String> {
        let (mut found, mut after) = (Vec::new(), None);
        loop {
            let list = DueList { kind: KIND, until: at(until), after, limit: page };
            let rows = documents.by_time(list).await.unwrap();
            found.extend(rows.iter().map(|row| format!("{}/{}", row.key.namespace, row.key.id)));
            after = rows.last().map(|row| (row.due.unwrap(), row.key.namespace.clone(), row.key.id.clone()));
            if rows.len() < page {
                return found;
            }
        }
    }

    /// 3: over namespaces, those of one time by name.
    pub async fn documents_are_listed_by_time(env: &dyn DocumentsEnv) {
        let documents = &*env.documents();
        for (id, time) in [("c", 20), ("b", 20), ("a", 30), ("d", 10), ("e", 40)] {
            store(documents, put_due(id, 0, time)).await;
        }
        store(documents, PutDocument { key: key("also", "z"), ..put_due("z", 0, 20) }).await;
        store(documents, put("never", 0, "without a time")).await;
        for page in [1, 2, 10] {
            let expected = ["default/d", "also/z", "default/b", "default/c", "default/a"];
            assert_eq!(due(documents, 30, page).await, expected, "pages of {page}");
        }
        assert_eq!(due(documents, 9, 10).await, [""; 0]);
    }

    /// 3: at its new time, and nowhere else.
    pub async fn a_time_that_was_moved_is_found_where_it_is(env: &dyn DocumentsEnv) {
        let documents = &*env.documents();
        let first = store(documents, put_due("a", 0, 10)).await;
        let later = store(documents, put_due("a", first, 30)).await;
        assert_eq!(due(documents, 20, 10).await, [""; 0]);
        assert_eq!(due(documents, 30, 10).await, ["default/a"]);
        let without = store(documents, put("a", later, "no time")).await;
        assert_eq!(due(documents, 100, 10).await, [""; 0]);
        let again = store(documents, put_due("a", without, 5)).await;
        store(documents, removal("a", again)).await;
        assert_eq!(due(documents, 100, 10).await, [""; 0]);
    }

    /// 2, 3: also those of the same name, but versions are common to all.
    pub async fn kinds_are_kept_apart(env: &dyn DocumentsEnv) {
        let documents = &*env.documents();
        let lock = |put: PutDocument| PutDocument {
            key: DocumentKey { kind: DocumentKind::Lock, ..put.key.clone() },
            ..put
        };
        let outcomes =
            documents.put(&[put_due("a", 0, 10), lock(put_due("a", 0, 20)), put("b", 0, "b")]).await;
        let outcomes = outcomes.unwrap();
        let versions = [stored(&outcomes[..1]), stored(&outcomes[1..2]), stored(&outcomes[2..])];
        assert!(versions.is_sorted_by(|a, b| a < b), "{versions:?}");
        let keys = [lock(put("a", 0, "")).key, key("default", "a"), lock(put("b", 0, "")).key];
        let found = documents.get(&keys).await.unwrap();
        let found: Vec<_> = found.into_iter().map(|found| found.map(|found| found.version)).collect();
        assert_eq!(found, [Some(versions[1]), Some(versions[0]), None]);
        assert_eq!(due(documents, 100, 10).await, ["default/a"]);
        let list =
            DocumentList { kind: DocumentKind::Lock, namespace: name("default"), after: None, limit: 9 };
        assert_eq!(documents.by_name(list).await.unwrap().len(), 1);
    }

    /// 1: large ones, empty ones, bytes that are no text.
    pub async fn any_bytes_are_kept(env: &dyn DocumentsEnv) {
        let documents = &*env.documents();
        let all: Vec<u8> = (0..=255).collect();
        for (id, value) in [("empty", Vec::new()), ("all", all), ("large", vec![7; PutDocument::BYTES_MAX])] {
            let content = Some(Content { due: None, value: value.clone() });
            store(documents, PutDocument { key: key("default", id), expected: 0, content }).await;
            assert_eq!(get(documents, id).await.unwrap().value, value, "{id}");
        }
    }

    /// 4.
    pub async fn documents_survive_a_crash(env: &dyn DocumentsEnv) {
        let documents = env.documents();
        let kept = store(&*documents, put_due("kept", 0, 10)).await;
        let removed = store(&*documents, put("removed", 0, "gone")).await;
        let last = store(&*documents, removal("removed", removed)).await;
        let documents = &*env.reopen_documents().await;
        assert_eq!(get(documents, "removed").await, None);
        assert_eq!(get(documents, "kept").await.unwrap().version, kept);
        assert_eq!(due(documents, 10, 10).await, ["default/kept"]);
        assert!(store(documents, put("new", 0, "new")).await > last, "versions go on");
    }
}
