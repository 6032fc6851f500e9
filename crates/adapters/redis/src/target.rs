//! The parts of a URL.
//!
//! ```text
//! redis://user:password@host:6379/0
//! redis+cluster://user:password@host:7000,host:7001
//! redis+sentinel://user:password@host:26379,host:26379/NAME/0?sentinel_password=…
//! ```
//! `rediss…` in place of `redis…` encrypts; `valkey…` and `valkeys…` are the same.

use redis::{ConnectionInfo, IntoConnectionInfo, RedisConnectionInfo};
use tasklane_ports::tls::{TlsOptions, decoded};

use crate::tls::Tls;

const SENTINEL_PORT: u16 = 26379;

/// A URL, taken apart.
#[derive(Debug)]
pub(crate) struct Target {
    pub(crate) topology: Topology,
    /// The servers, the nodes of a cluster or the sentinels that the URL names; all with the credentials of
    /// servers.
    pub(crate) hosts: Vec<ConnectionInfo>,
    pub(crate) tls: Option<Tls>,
    pub(crate) prefix: Option<String>,
}

/// How the servers belong together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Topology {
    Single,
    Cluster,
    Sentinel {
        /// The primary's name.
        name: String,
        user: Option<String>,
        password: Option<String>,
    },
}

#[derive(Default)]
struct Parameters {
    prefix: Option<String>,
    protocol: Option<String>,
    sentinel_user: Option<String>,
    sentinel_password: Option<String>,
    tls: TlsOptions,
}

impl Parameters {
    const KNOWN: &str =
        "prefix, protocol, sslmode, sslrootcert, sslcert, sslkey, sentinel_user and sentinel_password";

    fn parse(query: &str) -> Result<Self, String> {
        let mut parameters = Self::default();
        for part in query.split('&').filter(|part| !part.is_empty()) {
            let (name, value) = part.split_once('=').unwrap_or((part, ""));
            let place = match name {
                "prefix" => &mut parameters.prefix,
                "protocol" => &mut parameters.protocol,
                "sentinel_user" => &mut parameters.sentinel_user,
                "sentinel_password" => &mut parameters.sentinel_password,
                _ => parameters.tls.parameter(name).ok_or_else(|| {
                    format!("the URL's parameter {name:?} is not known; known are {}", Self::KNOWN)
                })?,
            };
            *place =
                Some(decoded(value).ok_or_else(|| format!("{name}: {value:?} is not percent-encoded text"))?);
        }
        if let Some(protocol) = parameters.protocol.as_deref()
            && !matches!(protocol, "2" | "3" | "resp2" | "resp3")
        {
            return Err(format!("protocol={protocol} is not known: it must be resp2 or resp3"));
        }
        Ok(parameters)
    }

    fn check(&self, topology: &Topology, encrypted: bool) -> Result<(), String> {
        let sentinel = matches!(topology, Topology::Sentinel { .. });
        if let Some(name) = self.tls.any()
            && !encrypted
        {
            return Err(format!(
                "{name} is for encrypted connections: use rediss:// in place of redis://, or leave {name} out"
            ));
        }
        for (name, value) in
            [("sentinel_user", &self.sentinel_user), ("sentinel_password", &self.sentinel_password)]
        {
            if value.is_some() && !sentinel {
                return Err(format!("{name} is for redis+sentinel://: leave it out"));
            }
        }
        if self.sentinel_user.is_some() && self.sentinel_password.is_none() {
            return Err("sentinel_user needs sentinel_password too".to_owned());
        }
        Ok(())
    }
}

impl Target {
    pub(crate) fn parse(url: &str) -> Result<Self, String> {
        if let Some((_, fragment)) = url.split_once('#') {
            return Err(format!(
                "#{fragment} is not used here: sslmode=… says how much of the server's certificate is checked, and # in \
                 a password is written %23"
            ));
        }
        let (base, query) = url.split_once('?').unwrap_or((url, ""));
        let (scheme, rest) = base.split_once("://").unwrap_or(("", base));
        let (family, topology) = scheme.split_once('+').unwrap_or((scheme, ""));
        let encrypted = match family {
            "redis" | "valkey" => false,
            "rediss" | "valkeys" => true,
            _ => return Err(format!("{scheme}:// is not known: a URL looks like redis://host:6379")),
        };
        let parameters = Parameters::parse(query)?;
        let (credentials, hosts) = match rest.rsplit_once('@') {
            Some((credentials, hosts)) => (format!("{credentials}@"), hosts),
            None => (String::new(), rest),
        };
        let (hosts, path) = hosts.split_once('/').unwrap_or((hosts, ""));
        let path = path.trim_end_matches('/');
        let (topology, database) = match topology {
            "" => (Topology::Single, path),
            "cluster" if matches!(path, "" | "0") => (Topology::Cluster, ""),
            "cluster" => return Err(format!("a cluster has only database 0, not {path}")),
            "sentinel" => {
                let (name, database) = path.split_once('/').unwrap_or((path, ""));
                let name = decoded(name).filter(|name| !name.is_empty()).ok_or(
                    "the URL names no primary: the name of `sentinel monitor` follows the hosts, as in \
                     redis+sentinel://host:26379/NAME",
                )?;
                let (user, password) =
                    (parameters.sentinel_user.clone(), parameters.sentinel_password.clone());
                (Topology::Sentinel { name, user, password }, database)
            }
            _ => {
                return Err(format!(
                    "{scheme}:// is not known: use {family}://, {family}+cluster:// or {family}+sentinel://"
                ));
            }
        };
        parameters.check(&topology, encrypted)?;
        let hosts: Vec<&str> = hosts.split(',').filter(|host| !host.is_empty()).collect();
        match (hosts.len(), &topology) {
            (0, _) => return Err("the URL names no server".to_owned()),
            (2.., Topology::Single) => {
                return Err("several servers are a cluster or sentinels: use redis+cluster:// or \
                            redis+sentinel://, or name one server"
                    .to_owned());
            }
            _ => {}
        }
        let default_port = match topology {
            Topology::Sentinel { .. } => Some(SENTINEL_PORT),
            Topology::Single | Topology::Cluster => None,
        };
        let protocol =
            parameters.protocol.as_ref().map_or_else(String::new, |protocol| format!("?protocol={protocol}"));
        let info = |host: &&str| {
            let port =
                default_port.filter(|_| !has_port(host)).map_or_else(String::new, |port| format!(":{port}"));
            let url = format!("redis://{credentials}{host}{port}/{database}{protocol}");
            url.into_connection_info().map_err(|error| format!("{host}: {error}"))
        };
        let hosts = hosts.iter().map(info).collect::<Result<_, _>>()?;
        let tls = if encrypted { Some(Tls::new(&parameters.tls)?) } else { None };
        Ok(Self { topology, hosts, tls, prefix: parameters.prefix })
    }
}

/// Whether a host, which may be an IPv6 address in brackets, is followed by a port.
fn has_port(host: &str) -> bool {
    host.rsplit_once(':').is_some_and(|(_, port)| !port.contains(']'))
}

/// The settings of connections to sentinels: they have no databases, and credentials of their own.
pub(crate) fn sentinel_settings(user: Option<&String>, password: Option<&String>) -> RedisConnectionInfo {
    let mut settings = RedisConnectionInfo::default();
    if let Some(user) = user {
        settings = settings.set_username(user);
    }
    if let Some(password) = password {
        settings = settings.set_password(password);
    }
    settings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(url: &str) -> Target {
        Target::parse(url).unwrap_or_else(|error| panic!("{url}: {error}"))
    }

    fn addresses(target: &Target) -> Vec<String> {
        target.hosts.iter().map(|host| host.addr().to_string()).collect()
    }

    #[test]
    fn a_url_names_a_server_a_cluster_or_sentinels() {
        let one = parsed("redis://u:p%40@localhost:6380/2?prefix=a&protocol=resp3");
        assert_eq!((one.topology.clone(), one.prefix.as_deref()), (Topology::Single, Some("a")));
        let settings = one.hosts[0].redis_settings();
        assert_eq!((settings.db(), settings.username(), settings.password()), (2, Some("u"), Some("p@")));
        assert_eq!(addresses(&one), ["localhost:6380"]);
        assert_eq!(addresses(&parsed("redis://localhost")), ["localhost:6379"]);

        let cluster = parsed("redis+cluster://u:p@a:7000,b:7001/?prefix=x");
        assert_eq!(
            (cluster.topology.clone(), addresses(&cluster)),
            (Topology::Cluster, vec!["a:7000".into(), "b:7001".into()])
        );
        assert_eq!(cluster.hosts[1].redis_settings().password(), Some("p"));

        let set = parsed("redis+sentinel://u:p@a,b:1/tasks/3?sentinel_password=s&sentinel_user=v");
        let name = "tasks".to_owned();
        let (user, password) = (Some("v".to_owned()), Some("s".to_owned()));
        assert_eq!(
            (set.topology.clone(), addresses(&set)),
            (Topology::Sentinel { name, user, password }, vec!["a:26379".into(), "b:1".into()])
        );
        assert_eq!(set.hosts[0].redis_settings().db(), 3);
        assert_eq!(addresses(&parsed("redis+sentinel://[::1]/tasks")).len(), 1);
    }

    #[test]
    fn valkey_is_redis_and_a_second_s_encrypts() {
        for url in ["redis", "valkey", "redis+cluster", "valkey+cluster"] {
            assert!(parsed(&format!("{url}://h")).tls.is_none(), "{url}");
        }
        for url in ["rediss", "valkeys", "rediss+cluster", "valkeys+cluster"] {
            assert!(parsed(&format!("{url}://h?sslmode=require")).tls.is_some(), "{url}");
        }
    }

    #[test]
    fn a_url_that_cannot_be_used_is_refused_with_the_part_and_the_remedy() {
        for (url, part, remedy) in [
            ("redis://h?colour=red", "colour", "sslrootcert"),
            ("redis://h?protocol=4", "protocol=4", "resp3"),
            ("redis://h?sslrootcert=/ca.pem", "sslrootcert", "rediss://"),
            ("rediss://h?sslmode=maybe", "sslmode=maybe", "verify-full"),
            ("rediss://h?sslmode=disable", "sslmode=disable", "redis://"),
            ("rediss://h?sslrootcert=/nowhere", "sslrootcert=/nowhere", "read"),
            ("rediss://h?sslrootcert=%2", "sslrootcert", "percent"),
            ("rediss://h?sslmode=require&sslcert=/c", "sslcert", "sslkey="),
            ("rediss://h#insecure", "#insecure", "sslmode"),
            ("redis://a,b", "several", "redis+cluster://"),
            ("redis://h/x", "h", "database"),
            ("redis://h?sentinel_password=p", "sentinel_password", "redis+sentinel://"),
            ("redis+sentinel://h", "primary", "redis+sentinel://host:26379/NAME"),
            ("redis+sentinel://h/m?sentinel_user=u", "sentinel_user", "sentinel_password"),
            ("redis+cluster://a:7000/1", "database 0", "1"),
            ("redis+cluster:///", "no server", ""),
            ("redis+ring://h", "redis+ring", "redis+cluster://"),
            ("http://h", "http", "redis://host:6379"),
        ] {
            let reason = Target::parse(url).unwrap_err();
            assert!(
                reason.contains(part) && reason.to_lowercase().contains(&remedy.to_lowercase()),
                "{url}: {reason}"
            );
        }
    }
}
