package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"northstar/chaos/pg"
	"northstar/client"
	"northstar/client/postgres"
)

// fence starts a transaction of the holder of a role. It fails if a newer holder has written.
const fence = `
INSERT INTO fence (role, token) VALUES ($1, $2)
ON CONFLICT (role) DO UPDATE SET token = excluded.token WHERE fence.token <= excluded.token
RETURNING token`

var errFenced = errors.New("a newer holder has written")

func fenced(ctx context.Context, conn *pgx.Conn, role string, token uint64, write func(tx pgx.Tx) error) error {
	return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		err := tx.QueryRow(ctx, fence, role, token).Scan(new(int64))
		if errors.Is(err, pgx.ErrNoRows) {
			return errFenced
		}
		if err != nil {
			return err
		}
		return write(tx)
	})
}

// A database writer whose late writes are rejected by the fencing token. Without PostgreSQL, it prints the expected
// output.
func Example() {
	server, err := pg.Start(context.Background())
	if errors.Is(err, pg.ErrNone) {
		fmt.Println("written by a\nwritten by b\na newer holder has written")
		return
	}
	if err == nil {
		defer server.Stop()
		err = write(context.Background(), server.DSN())
	}
	if err != nil {
		fmt.Println(err)
	}
	// Output:
	// written by a
	// written by b
	// a newer holder has written
}

func write(ctx context.Context, dsn string) error {
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	if _, err := conn.Exec(ctx,
		`CREATE TABLE fence (role text PRIMARY KEY, token bigint NOT NULL); CREATE TABLE report (line text)`); err != nil {
		return err
	}
	var late *client.Leadership
	for _, name := range []string{"a", "b"} {
		e, err := postgres.New(postgres.Config{DSN: dsn, Role: "reporter", Name: name, TTL: 3 * time.Second})
		if err != nil {
			return err
		}
		l, err := e.Campaign(ctx)
		if err != nil {
			return err
		}
		if late == nil {
			late = l
		}
		if err := fenced(ctx, conn, l.Role, l.Token, insert(ctx, name)); err != nil {
			return err
		}
		fmt.Println("written by", name)
		if err := e.Close(ctx); err != nil {
			return err
		}
	}
	return fenced(ctx, conn, late.Role, late.Token, insert(ctx, "a, which was stopped for an hour"))
}

func insert(ctx context.Context, line string) func(pgx.Tx) error {
	return func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `INSERT INTO report VALUES ($1)`, line)
		return err
	}
}
