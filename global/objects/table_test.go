package objects

import (
	"fmt"
	"testing"
	"time"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"

	"github.com/nusa-scheduler/nusa/global/state"
)

// TestRoomCountsTheTransaction: requests that share a transaction do not exceed the bound together, and a removal
// makes room for the next one.
func TestRoomCountsTheTransaction(t *testing.T) {
	st := state.New(state.Beginning{Epoch: "e"}, func() time.Duration { return 0 })
	table := NewTable(st, "things", func() *nusav1.BusRecord { return new(nusav1.BusRecord) })
	other := NewTable(st, "things-2", func() *nusav1.BusRecord { return new(nusav1.BusRecord) })
	st.Lock()
	defer st.Unlock()
	table.apply("stored", &nusav1.BusRecord{})
	tx := state.NewTx(st)
	put := func(to *Table[*nusav1.BusRecord], name string) {
		t.Helper()
		if err := to.Put(tx, name, &nusav1.BusRecord{}); err != nil {
			t.Fatal(err)
		}
	}
	put(table, "stored")
	put(other, "of another kind")
	for i := range 3 {
		if err := table.Room(tx, 4, "things"); err != nil {
			t.Errorf("with %d records: %v", 1+i, err)
		}
		put(table, fmt.Sprint("new-", i))
	}
	if err := table.Room(tx, 4, "things"); err == nil || err.Error() != "there are 4 things, the most that are allowed: remove one" {
		t.Errorf("with 4 records: %v", err)
	}
	for _, name := range []string{"stored", "new-0", "unknown"} {
		if err := table.Delete(tx, name); err != nil {
			t.Fatal(err)
		}
	}
	if table.Room(tx, 2, "things") == nil || table.Room(tx, 3, "things") != nil {
		t.Error("two removals do not make room for two")
	}
}
