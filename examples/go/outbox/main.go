// Submits tasks inside transactions of database/sql: one that commits, and one that rolls back.
//
// DATABASE_URL names the database of the application, for example
// postgres://shop_app@localhost/shop. The database has an outbox, and a table: create table orders
// (id integer primary key). TOPIC is where the records go (demo).
package main

import (
	"cmp"
	"database/sql"
	"errors"
	"fmt"
	"log"
	"os"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib"
)

var topic = cmp.Or(os.Getenv("TOPIC"), "demo")

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

// inTransaction commits what work did, or rolls it back if work fails.
func inTransaction(db *sql.DB, work func(tx *sql.Tx) error) error {
	tx, err := db.Begin()
	if err != nil {
		return err
	}
	defer tx.Rollback() // After the commit, this does nothing.
	if err := work(tx); err != nil {
		return err
	}
	return tx.Commit()
}

// place places an order, and reminds of it in half an hour.
func place(tx *sql.Tx, number int) error {
	if _, err := tx.Exec("insert into orders values ($1)", number); err != nil {
		return err
	}
	// pgx writes the map as JSON, and the duration as an interval.
	payload, delay := map[string]int{"remind": number}, 30*time.Minute
	key, name := fmt.Sprintf("order-%d", number), fmt.Sprintf("remind-%d", number)
	_, err := tx.Exec(
		"select punctual.submit($1, payload => $2, delay => $3, key => $4, name => $5)",
		topic, payload, delay, key, name,
	)
	return err
}

func main() {
	db, err := sql.Open("pgx", os.Getenv("DATABASE_URL"))
	check(err)
	defer db.Close()
	check(inTransaction(db, func(tx *sql.Tx) error {
		if err := place(tx, 17); err != nil {
			return err
		}
		return place(tx, 18)
	}))
	fmt.Println("orders 17 and 18: committed, with their tasks")

	outOfStock := errors.New("out of stock")
	err = inTransaction(db, func(tx *sql.Tx) error {
		if err := place(tx, 19); err != nil {
			return err
		}
		return outOfStock // The row is written, and is gone with the transaction.
	})
	if !errors.Is(err, outOfStock) {
		check(err)
	}
	fmt.Printf("order 19: rolled back, with its task (%v)\n", err)

	check(inTransaction(db, func(tx *sql.Tx) error {
		_, err := tx.Exec("select punctual.cancel($1, $2)", topic, "remind-18")
		return err
	}))
	fmt.Println("order 18: paid, and its task cancelled")
}
