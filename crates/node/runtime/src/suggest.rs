//! "Did you mean": the known word that is nearest to a wrong one.

/// The nearest of `known`, if it is near enough to be meant.
pub fn nearest<'a>(wrong: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let far = (wrong.chars().count() / 3).clamp(1, 4);
    known
        .map(|word| (distance(wrong, word), word))
        .filter(|(distance, _)| *distance <= far)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, word)| word)
}

/// How many letters have to be inserted, removed, exchanged, or swapped with their neighbour.
pub fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut rows = vec![vec![0; b.len() + 1]; a.len() + 1];
    for (i, row) in rows.iter_mut().enumerate() {
        row[0] = i;
    }
    for (j, cell) in rows[0].iter_mut().enumerate() {
        *cell = j;
    }
    for i in 1..=a.len() {
        for j in 1..=b.len() {
            let exchanged = rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut best = exchanged.min(rows[i - 1][j] + 1).min(rows[i][j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                best = best.min(rows[i - 2][j - 2] + 1);
            }
            rows[i][j] = best;
        }
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_is_recognised_and_a_stranger_is_not() {
        let known = || ["listen", "data_dir", "lanes"].into_iter();
        assert_eq!(nearest("lisen", known()), Some("listen"));
        assert_eq!(nearest("datadir", known()), Some("data_dir"));
        assert_eq!(nearest("laens", known()), Some("lanes"));
        assert_eq!(nearest("colour", known()), None);
    }
}
