-- Small named values that belong to no lane. `due` is when somebody must look at one.
CREATE TABLE document (
    kind      INTEGER NOT NULL,
    namespace TEXT NOT NULL,
    id        TEXT NOT NULL,
    version   INTEGER NOT NULL,
    due       INTEGER,
    value     BLOB NOT NULL,
    PRIMARY KEY (kind, namespace, id)
) STRICT;
CREATE INDEX document_due ON document (kind, due, namespace, id) WHERE due IS NOT NULL;

-- The last version that a document was given, in its one row.
CREATE TABLE document_version (
    version INTEGER NOT NULL
) STRICT;
INSERT INTO document_version (version) VALUES (0);
