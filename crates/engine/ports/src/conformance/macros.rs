//! Makes named tests of cases.

use std::time::Duration;

use tokio::runtime::Builder;

/// A case that takes longer is stuck.
const CASE_MAX: Duration = Duration::from_mins(2);

/// Runs a case on a runtime with two threads, so that races are real. `None` means that it was skipped.
pub fn run(name: &str, case: impl Future<Output = Option<()>>) {
    finish(name, case, Builder::new_multi_thread().worker_threads(2));
}

/// Runs a case on a runtime with one thread, so that time can be paused.
pub fn run_alone(name: &str, case: impl Future<Output = Option<()>>) {
    finish(name, case, &mut Builder::new_current_thread());
}

#[expect(clippy::print_stderr, reason = "a case is skipped aloud, never silently")]
fn finish(name: &str, case: impl Future<Output = Option<()>>, builder: &mut Builder) {
    let runtime = builder.enable_all().build().unwrap();
    let ended = runtime.block_on(async { tokio::time::timeout(CASE_MAX, case).await });
    match ended {
        Ok(Some(())) => {}
        Ok(None) => eprintln!("SKIPPED {name}: the system under test is not there"),
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
