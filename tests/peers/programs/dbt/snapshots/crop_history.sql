{% snapshot crop_history %}
{{ config(target_schema='built', unique_key='id', strategy='check', check_cols=['tons']) }}
SELECT id, tons FROM {{ ref('crop') }}
{% endsnapshot %}
