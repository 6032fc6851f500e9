//! Warnings of a start: which clients can reach this process, and with what power.

use crate::assemble::Roles;
use crate::config::Config;

/// The warnings for the operator.
pub(crate) fn warnings(config: &Config, roles: Roles, is_root: bool) -> Vec<String> {
    let mut warnings = Vec::new();
    if is_root && roles.worker {
        warnings.push(
            "this process runs as root, and so does every command of every task: start it as a user of its own"
                .to_owned(),
        );
    } else if is_root {
        warnings.push("this process runs as root without need: start it as a user of its own".to_owned());
    }
    if let Some(listen) = config.listen.filter(|listen| roles.server && !listen.ip().is_loopback()) {
        warnings.push(format!(
            "other machines can reach the API at {listen}, which does not encrypt: the token, payloads and results are readable \
             on the network. Let it listen on 127.0.0.1 behind a proxy with TLS, or keep the network private"
        ));
    }
    warnings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn warned(listen: &str, roles: Roles, is_root: bool) -> Vec<String> {
        let config = Config { listen: Some(listen.parse().unwrap()), ..Config::default() };
        warnings(&config, roles, is_root)
    }

    #[test]
    fn root_and_public_addresses_are_warned_of() {
        assert_eq!(warned("127.0.0.1:1", Roles::ALL, false), [""; 0]);
        assert!(warned("[::1]:1", Roles::ALL, true)[0].contains("every command"));
        assert!(warned("[::1]:1", Roles::SERVER, true)[0].contains("runs as root"));
        assert!(warned("10.0.0.7:1", Roles::SERVER, false)[0].contains("does not encrypt"));
        assert_eq!(warned("10.0.0.7:1", Roles::WORKER, false), [""; 0]);
    }
}
