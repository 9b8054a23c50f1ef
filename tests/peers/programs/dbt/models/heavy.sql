SELECT id, name, tons FROM {{ ref('crop') }} WHERE tons > 5
