-- A small shop for compose.yaml, and the two roles that the proxy works as. Run by psql on an empty database, as its
-- owner, with the passwords in the environment: they stand in no file.
\set ON_ERROR_STOP on
\getenv shop_ro_password SHOP_RO_PASSWORD
\getenv shop_app_password SHOP_APP_PASSWORD

BEGIN;

CREATE TABLE public.customers (
  id    bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  name  text NOT NULL,
  city  text NOT NULL,
  email text NOT NULL UNIQUE
);
CREATE TABLE public.orders (
  id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  customer_id bigint NOT NULL REFERENCES public.customers,
  status      text NOT NULL DEFAULT 'open' CHECK (status IN ('open', 'paid', 'sent')),
  total       numeric(10, 2) NOT NULL CHECK (total >= 0),
  ordered_at  timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX ON public.orders (customer_id);
CREATE TABLE public.api_keys (
  id     bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  secret text NOT NULL
);

INSERT INTO public.customers (name, city, email)
SELECT 'Customer ' || n, (ARRAY['Lisbon', 'Oslo', 'Turin'])[1 + n % 3], 'customer' || n || '@example.org'
FROM generate_series(1, 200) AS n;
INSERT INTO public.orders (customer_id, status, total, ordered_at)
SELECT 1 + n % 200, (ARRAY['open', 'paid', 'sent'])[1 + n % 3], n % 97 + 0.5,
       timestamptz '2026-01-01' + n * interval '1 hour'
FROM generate_series(1, 2000) AS n;
INSERT INTO public.api_keys (secret) VALUES ('nobody reads this through the proxy');

-- Each role can do what its agent's policy allows, and no more: the gate is not the only lock.
CREATE ROLE shop_ro LOGIN PASSWORD :'shop_ro_password';
CREATE ROLE shop_app LOGIN PASSWORD :'shop_app_password';
ALTER ROLE shop_ro SET default_transaction_read_only = on;
REVOKE ALL ON SCHEMA public FROM PUBLIC;
GRANT USAGE ON SCHEMA public TO shop_ro, shop_app;
GRANT SELECT (id, name, city) ON public.customers TO shop_ro, shop_app;
GRANT SELECT ON public.orders TO shop_ro, shop_app;
GRANT INSERT, UPDATE ON public.orders TO shop_app;
SELECT pg_catalog.format('REVOKE TEMPORARY ON DATABASE %I FROM PUBLIC', pg_catalog.current_database()) \gexec

COMMIT;
ANALYZE;
