{{ config(materialized='incremental', unique_key='id', indexes=[{'columns': ['id'], 'unique': true}]) }}
SELECT id, name, tons, {{ 'true' if is_incremental() else 'false' }} AS again FROM {{ ref('crop') }}
{% if is_incremental() %} WHERE id > 1 {% endif %}
