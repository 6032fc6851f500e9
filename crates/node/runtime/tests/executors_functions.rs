//! Functions as executors.
#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

mod executors_support;

use std::sync::Arc;
use std::time::Duration;

use executors_support::*;
use serde::Deserialize;
use serde_json::{Value, json as value};
use tasklane_core::id::Name;
use tasklane_core::message::{Ending, RetryAdvice};
use tasklane_runtime::executors::{Function, FunctionError, Registry, TaskContext};

#[derive(Deserialize)]
struct Resize {
    width: u32,
}

async fn resize(task: TaskContext) -> Result<Value, FunctionError> {
    let Resize { width } = task.payload_as()?;
    task.log("resizing");
    task.progress(50, "half");
    Ok(value!({
        "width": width,
        "attempt": task.attempt().0,
        "fence": task.fence(),
        "name": task.name(),
        "colour": task.metadata("colour"),
    }))
}

#[tokio::test]
async fn a_function_sees_its_task_and_answers() {
    let mut registry = Registry::new();
    let name = Name::new("resize").unwrap();
    assert!(registry.register(name.clone(), Arc::new(Function::new(resize))).is_none());
    let (finish, said) = run(&**registry.executor(&name).unwrap(), json(value!({"width": 640}))).await;
    assert_eq!(finish.ending, Ending::Success);
    let data: Value = serde_json::from_str(&finish.result.data).unwrap();
    let expected = value!({"width": 640, "attempt": 3, "fence": 3, "name": "my task", "colour": "red"});
    assert_eq!(data, expected);
    assert_eq!(said.stdout(), "resizing\n");
    assert_eq!(said.progress[0].percent, Some(50));
}

#[tokio::test]
async fn a_payload_that_does_not_fit_is_never_tried_again() {
    let (finish, _) = run(&Function::new(resize), json(value!({"height": 1}))).await;
    let (code, message, retry) = failure(&finish);
    assert_eq!((code, retry), ("bad_payload", RetryAdvice::Never));
    assert_eq!(message, "payload is not valid: missing field `width` at line 1 column 12");
}

#[tokio::test]
async fn errors_say_whether_to_retry() {
    let later = Function::new(|_| async {
        Err(FunctionError::new("busy").code("busy").retry_after(Duration::from_secs(5)))
    });
    let (finish, _) = run(&later, text("")).await;
    assert_eq!(failure(&finish), ("busy", "busy", RetryAdvice::After(Duration::from_secs(5))));
    let never = Function::new(|_| async { Err(FunctionError::new("no").never_retry()) });
    assert_eq!(failure(&run(&never, text("")).await.0), ("function_failed", "no", RetryAdvice::Never));
    let foreign = Function::new(|_| async { Ok(Value::from("x".parse::<u32>()?)) });
    let (finish, _) = run(&foreign, text("")).await;
    assert_eq!(failure(&finish), ("function_failed", "invalid digit found in string", RetryAdvice::Policy));
}

#[tokio::test]
async fn a_panic_is_a_failure_of_the_attempt_alone() {
    let panics = Function::new(|task: TaskContext| async move { panic!("cannot do {}", task.name()) });
    let (finish, _) = run(&panics, text("")).await;
    let expected = ("panic", "the function panicked: cannot do my task", RetryAdvice::Policy);
    assert_eq!(failure(&finish), expected);
    let at_once =
        Function::new(|_| -> std::future::Ready<Result<Value, FunctionError>> { panic!("at once") });
    assert_eq!(failure(&run(&at_once, text("")).await.0).1, "the function panicked: at once");
}

#[tokio::test]
async fn a_result_that_is_too_large_fails() {
    let large = Function::new(|_| async { Ok(Value::from("x".repeat(100))) }).result_bytes_max(50);
    let (finish, _) = run(&large, text("")).await;
    let expected = ("result_too_large", "the result has 102 bytes, at most 50", RetryAdvice::Never);
    assert_eq!(failure(&finish), expected);
}

#[tokio::test(start_paused = true)]
async fn a_function_that_is_stopped_has_its_grace() {
    // This function obeys the stop.
    let recorder = Recorder::new();
    recorder.stop(Duration::from_secs(5));
    let listens = Function::new(|task: TaskContext| async move {
        task.stopped().await;
        Ok(value!("saved"))
    });
    let finish = run_with(&listens, text(""), Arc::clone(&recorder)).await;
    assert_eq!((finish.ending, finish.result.data.as_str()), (Ending::Success, r#""saved""#));
    // This one does not.
    let begun = tokio::time::Instant::now();
    let stuck = Function::new(|_| std::future::pending());
    let finish = run_with(&stuck, text(""), recorder).await;
    assert_eq!(failure(&finish).0, "stopped");
    assert_eq!(begun.elapsed().as_secs(), 5);
}
