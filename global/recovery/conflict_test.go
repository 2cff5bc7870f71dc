package recovery

import (
	"testing"

	"github.com/nusa-scheduler/nusa/global/store"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// TestNoteLog: a log that is shorter than a record says is another one. A store that tells
// only bounds raises no false alarm.
func TestNoteLog(t *testing.T) {
	for _, c := range []struct {
		name     string
		stored   int64 // 0 = no record
		log      store.Surplus
		want     int64
		conflict bool
	}{
		{"the first term", 0, store.Surplus{Least: 5, Most: 7, Known: true}, 5, false},
		{"the log grew", 5, store.Surplus{Least: 9, Most: 9, Known: true}, 9, false},
		{"the bounds contain the number", 5, store.Surplus{Least: 3, Most: 5, Known: true}, 5, false},
		{"another log", 5, store.Surplus{Least: 3, Most: 4, Known: true}, 5, true},
		{"a restored snapshot", 5, store.Surplus{Least: -100, Most: -100, Known: true}, 5, true},
		{"after a recovery", -100, store.Surplus{Least: -98, Most: -97, Known: true}, -98, false},
		{"not known", 5, store.Surplus{}, 5, false},
	} {
		rec := &nusav1.LeadershipRecord{}
		if c.stored != 0 {
			rec.Log = &nusav1.StoreLog{Surplus: c.stored}
		}
		NoteLog(rec, c.log, 100)
		if rec.GetLog().GetSurplus() != c.want || rec.GetConflict().GetOtherLog() != c.conflict {
			t.Errorf("%s: %v", c.name, rec)
		}
	}
}
