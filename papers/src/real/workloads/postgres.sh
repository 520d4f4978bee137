#!/bin/sh
# postgres.sh init|sort: makes a database here, or runs sorted.sql in it by a server of one process.
# Postgres refuses to be root; in this user namespace it is not, and the folder is its own.
for bin in /usr/lib/postgresql/*/bin; do :; done
as_user="unshare --user --map-user=1000 --map-group=1000"
case $1 in
init)
    exec $as_user "$bin/initdb" -D data -A trust --no-sync
    ;;
sort)
    # A run that was ended early leaves it.
    rm -f data/postmaster.pid
    exec $as_user "$bin/postgres" --single -D data -c work_mem=64GB -c shared_buffers=8MB postgres \
        <sorted.sql
    ;;
esac
