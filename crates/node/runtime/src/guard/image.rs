//! A command as the kernel takes it: where its program may be, and lists of strings that end with NUL.

use std::collections::BTreeMap;
use std::ffi::CString;

use rustix::io::Errno;

use super::sys::Image;
use super::wire::Spawn;

/// The search path for a command without a `PATH`.
const DEFAULT_PATH: &str = "/bin:/usr/bin";

/// Refused if anything contains NUL, or if there is no program.
pub(super) fn image(spawn: Spawn) -> Result<Image, Errno> {
    let Spawn { argv, env, cwd, .. } = spawn;
    let text = |text: Vec<u8>| CString::new(text).map_err(|_| Errno::INVAL);
    let program = argv.first().ok_or(Errno::INVAL)?;
    // Of two variables with the same name the later one counts.
    let env: BTreeMap<String, String> = env.into_iter().collect();
    let path = env.get("PATH").map_or(DEFAULT_PATH, String::as_str);
    let paths = candidates(program, path);
    Ok(Image {
        paths: paths.into_iter().map(|path| text(path.into_bytes())).collect::<Result<_, _>>()?,
        env: env
            .into_iter()
            .map(|(name, value)| text(format!("{name}={value}").into_bytes()))
            .collect::<Result<_, _>>()?,
        argv: argv.into_iter().map(|arg| text(arg.into_bytes())).collect::<Result<_, _>>()?,
        cwd: cwd.map(|cwd| text(cwd.into_os_string().into_encoded_bytes())).transpose()?,
    })
}

fn candidates(program: &str, path: &str) -> Vec<String> {
    if program.is_empty() {
        return Vec::new();
    }
    if program.contains('/') {
        return vec![program.to_owned()];
    }
    let within = |folder: &str| match folder {
        // An empty entry stands for the working folder.
        "" => program.to_owned(),
        folder => format!("{folder}/{program}"),
    };
    path.split(':').map(within).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_looked_for_as_shells_do() {
        for (program, path, expected) in [
            ("ls", "/usr/bin:/bin", vec!["/usr/bin/ls", "/bin/ls"]),
            ("ls", ":/bin", vec!["ls", "/bin/ls"]),
            ("./ls", "/bin", vec!["./ls"]),
            ("/bin/ls", "/usr/bin", vec!["/bin/ls"]),
            ("", "/bin", vec![]),
        ] {
            assert_eq!(candidates(program, path), expected);
        }
    }

    #[test]
    fn what_the_kernel_cannot_take_is_refused() {
        let spawn = |argv: &[&str], env: &[(&str, &str)]| Spawn {
            id: 0,
            argv: argv.iter().map(|&arg| arg.to_owned()).collect(),
            env: env.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect(),
            cwd: None,
            has_stdin: false,
        };
        assert!(image(spawn(&[], &[])).is_err());
        assert!(image(spawn(&["a\0b"], &[])).is_err());
        assert!(image(spawn(&["a"], &[("b", "\0")])).is_err());
        let image = image(spawn(&["a"], &[("x", "1"), ("b", ""), ("x", "2")])).unwrap();
        assert_eq!(image.env, [c"b=", c"x=2"].map(CString::from));
        assert_eq!(image.paths, [c"/bin/a", c"/usr/bin/a"].map(CString::from));
    }
}
