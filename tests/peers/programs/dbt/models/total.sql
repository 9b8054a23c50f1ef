{{ config(materialized='view') }}
SELECT count(*) AS n, sum(tons) AS tons FROM {{ ref('heavy') }}
