"""Django: check, migrate, the ORM, inspectdb, a test database. Prints what each step saw under `== step`."""

import io
import os
import sys

import django
from django.conf import settings
from django.core.management import call_command

settings.configure(
    INSTALLED_APPS=[
        "django.contrib.contenttypes",
        "django.contrib.auth",
        "django.contrib.sessions",
        "django.contrib.postgres",
    ],
    DATABASES={
        "default": {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": os.environ["PGDATABASE"],
            "USER": os.environ["PGUSER"],
            "PASSWORD": os.environ["PGPASSWORD"],
            "HOST": os.environ["PGHOST"],
            "PORT": os.environ["PGPORT"],
            # Server-side binding: the extended protocol; without: literals in the text.
            "OPTIONS": {"server_side_binding": sys.argv[1] == "binding"},
        }
    },
    DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
    USE_TZ=True,
)
django.setup()

from django.contrib.auth.models import Group, Permission, User  # noqa: E402
from django.contrib.sessions.models import Session  # noqa: E402
from django.db import IntegrityError, ProgrammingError, connection, transaction  # noqa: E402
from django.db.models import Count, F, Q  # noqa: E402
from django.db.models.functions import Lower  # noqa: E402


def run(*command: str) -> None:
    out = io.StringIO()
    call_command(*command, stdout=out)
    print(out.getvalue().strip())


print("== check and migrate")
run("check", "--database", "default")
run("migrate", "--verbosity", "1")
run("showmigrations")
run("sqlmigrate", "auth", "0001")
run("migrate", "auth", "0011")
run("migrate", "auth")

print("== orm")
users = [User.objects.create_user(f"user{n}", f"u{n}@example.com", first_name=f"F'{n}") for n in range(5)]
groups = Group.objects.bulk_create([Group(name=f"group {n}") for n in range(30)])
users[0].groups.add(*groups[:3])
users[1].groups.add(*groups[2:6])
print(
    list(
        User.objects.filter(Q(username__startswith="user") & ~Q(id=users[4].id))
        .order_by("id")
        .values_list("username", "first_name")
    )
)
print(
    list(
        Group.objects.annotate(n=Count("user"))
        .filter(n__gt=0)
        .order_by("-n", "name")
        .values_list("name", "n")
    )
)
print(User.objects.filter(groups__name="group 2").update(last_name=F("first_name")))
print(
    list(
        User.objects.annotate(low=Lower("last_name"))
        .exclude(last_name="")
        .order_by("id")
        .values_list("low", flat=True)
    )
)
with transaction.atomic():
    print(
        [
            g.name
            for g in Group.objects.select_for_update()
            .filter(name__in=["group 1", "group 2"])
            .order_by("name")
        ]
    )
print(Group.objects.get_or_create(name="group 1")[1], Group.objects.update_or_create(name="fresh")[1])
print(len(list(Permission.objects.select_related("content_type").iterator(chunk_size=3))))
print(User.objects.in_bulk([users[0].id, users[1].id]).keys() == {users[0].id, users[1].id})
print(Group.objects.filter(name__startswith="group 2").delete())
print(User.objects.filter(username="user0").explain().splitlines()[0].split("(")[0])
print(
    Session.objects.exists(),
    User.objects.raw("SELECT * FROM auth_user WHERE id = %s", [users[0].id])[0].username,
)

print("== errors of syntax and names")
try:
    with connection.cursor() as cursor:
        cursor.execute("SELECT nowhere FROM auth_user")
except ProgrammingError as error:
    print(error)

print("== errors")
try:
    with transaction.atomic():
        Group.objects.create(name="group 1")
except IntegrityError as error:
    print(error)
with transaction.atomic():
    try:
        with transaction.atomic():
            User.objects.create(username="user1")
    except IntegrityError as error:
        print(error)
    print(User.objects.count())

print("== introspection")
run("inspectdb")
with connection.cursor() as cursor:
    print(connection.introspection.get_table_list(cursor))
    print(connection.introspection.get_constraints(cursor, "auth_user").keys())

print("== a database for tests")
connection.creation.create_test_db(verbosity=0, serialize=False)
print(connection.settings_dict["NAME"], User.objects.count())
connection.creation.destroy_test_db(os.environ["PGDATABASE"], verbosity=0)
run("flush", "--no-input")
print(User.objects.count())
