//! Makes a named test of each case.

use std::io::Write;
use std::pin::Pin;
use std::time::Duration;

use tokio::runtime::Builder;

/// A case that takes longer is stuck.
const CASE_MAX: Duration = Duration::from_mins(2);
const LONG_CASE_MAX: Duration = Duration::from_hours(1);

/// Runs a case on a runtime with two threads, so that races are real. `None` means that it was skipped.
pub fn run(name: &str, case: impl Future<Output = Option<()>>) {
    finish(name, Box::pin(case), CASE_MAX, Builder::new_multi_thread().worker_threads(2));
}

/// Like [`run`], for a case with many runs.
pub fn run_long(name: &str, case: impl Future<Output = Option<()>>) {
    finish(name, Box::pin(case), LONG_CASE_MAX, Builder::new_multi_thread().worker_threads(2));
}

/// Runs a case on a runtime with one thread, so that time can be paused.
pub fn run_alone(name: &str, case: impl Future<Output = Option<()>>) {
    finish(name, Box::pin(case), CASE_MAX, &mut Builder::new_current_thread());
}

/// Prints that a case was skipped, and why.
pub fn skipped(name: &str, why: &str) {
    // Not by a macro: the test runner shows macro output only for failed tests.
    let _ = writeln!(std::io::stderr(), "SKIPPED {name}: {why}");
}

/// Boxed, so that all of this is compiled once and not for each of hundreds of cases.
type Case<'a> = Pin<Box<dyn Future<Output = Option<()>> + 'a>>;

fn finish(name: &str, case: Case<'_>, case_max: Duration, builder: &mut Builder) {
    let runtime = builder.enable_all().build().unwrap();
    let ended = runtime.block_on(async { tokio::time::timeout(case_max, case).await });
    match ended {
        Ok(Some(())) => {}
        Ok(None) => skipped(name, "the system under test is not there"),
        Err(tokio::time::error::Elapsed { .. }) => panic!("{name} is stuck"),
    }
}

/// One test for each case: see [`store_conformance`](crate::store_conformance) and its siblings.
#[doc(hidden)]
#[macro_export]
macro_rules! conformance_cases {
    ($port:ident, $run:ident, $factory:expr, { $($theme:ident: [$($case:ident,)*],)* }) => {
        mod $port {
            #[allow(unused_imports, reason = "the factory may need them, or be a closure")]
            use super::*;
            $(mod $theme {
                #[allow(unused_imports, reason = "the factory may need them, or be a closure")]
                use super::*;
                $(#[test]
                fn $case() {
                    $crate::conformance::$run(concat!(stringify!($theme), "::", stringify!($case)), async {
                        let env = ($factory)().await?;
                        $crate::conformance::$port::$theme::$case(&env).await;
                        Some(())
                    });
                })*
            })*
        }
    };
}
