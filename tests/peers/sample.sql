-- Rows, and objects of kinds that support/rich_schema.sql, which comes before, has none of.
CREATE EXTENSION IF NOT EXISTS plpgsql;
CREATE ROLE clerk LOGIN PASSWORD 'clerk';
CREATE ROLE auditor;
CREATE TABLE public.blobs (id int PRIMARY KEY, raw bytea, words text[], doc jsonb, at timestamptz, amount numeric(20, 6));
INSERT INTO public.blobs
  SELECT n, decode(repeat(to_hex(n % 256), 40), 'escape'), ARRAY['a,b', 'c"d', NULL, '\\', E'tab\tnewline\n'],
         jsonb_build_object('n', n, 'text', 'Grüße, 世界'), timestamptz '2026-01-01 00:00Z' + n * interval '1 hour', n / 7.0
  FROM generate_series(1, 3000) n;
CREATE TABLE public.wide (id int GENERATED ALWAYS AS IDENTITY, t text);
INSERT INTO public.wide (t) SELECT string_agg(md5((n * k)::text), '' ORDER BY k) FROM generate_series(1, 20) n, generate_series(1, 3000) k GROUP BY n;
INSERT INTO "Odd Names"."Mixed Case" VALUES (1, E'back\\slash'), (2, NULL), (NULL, E'\\.'), (4, E'line\nbreak');
COMMENT ON TABLE public.blobs IS 'It''s a table; with "quotes"';
COMMENT ON COLUMN public.blobs.raw IS $$multi
line$$;
GRANT SELECT, INSERT (id) ON public.blobs TO clerk WITH GRANT OPTION;
ALTER DEFAULT PRIVILEGES IN SCHEMA app GRANT SELECT ON TABLES TO auditor;
CREATE STATISTICS public.both_of (dependencies) ON id, at FROM public.blobs;
CREATE FUNCTION lab.on_event() RETURNS event_trigger LANGUAGE plpgsql AS 'BEGIN END';
CREATE EVENT TRIGGER quiet ON ddl_command_end EXECUTE FUNCTION lab.on_event();
CREATE PUBLICATION changes FOR TABLE public.blobs WHERE (id > 10);
CREATE FOREIGN DATA WRAPPER nothing;
CREATE SERVER nowhere FOREIGN DATA WRAPPER nothing OPTIONS (host 'h''h');
CREATE USER MAPPING FOR clerk SERVER nowhere;
CREATE FOREIGN TABLE public.far (a int) SERVER nowhere;
CREATE TEXT SEARCH CONFIGURATION public.plain (COPY = simple);
CREATE COLLATION public.bytewise FROM "C";
ALTER TABLE public.blobs SET (autovacuum_enabled = off);
