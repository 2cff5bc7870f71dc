package store

import (
	"errors"
	"path/filepath"
	"testing"
	"time"

	bolt "go.etcd.io/bbolt"
	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/agent/health"
	"github.com/nusa-scheduler/nusa/agent/reconcile"
	"github.com/nusa-scheduler/nusa/internal/link"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// earlierFile writes a store with the buckets, keys and JSON of earlier versions.
func earlierFile(t *testing.T, path string) {
	t.Helper()
	db, err := bolt.Open(path, 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	order, err := proto.Marshal(&nusav1.AllocOrder{Allocation: &nusav1.Allocation{Id: "aaaa"}, Index: 7})
	if err != nil {
		t.Fatal(err)
	}
	err = db.Update(func(tx *bolt.Tx) error {
		var errs []error
		for bucket, entries := range map[string]map[string]string{
			"meta": {"format": "1", "node_id": "node-1", "store_id": "store-1", "starts": "4",
				"position": `{"Epoch":"raft","Sequence":9}`, "master": `{"incarnation":2,"term":5}`,
				"timeline": `{"boot":"one","zero":"2026-01-01T00:00:00Z"}`},
			"orders": {"aaaa": string(order)},
			"forget": {"bbbb": "\x01"},
			"records": {"aaaa": `{"actual":{"Accepted":true,"Closing":null,"End":null,"Started":"2026-01-01T01:00:00Z","Reached":2,` +
				`"Tasks":{"main":{"Phase":3,"Run":2,"Finished":"0001-01-01T00:00:00Z","ExitCode":0,"Signal":0,"Reason":"","Message":"",` +
				`"Restarts":null,"Health":2,"Sick":"failed its check","Vain":1,"Doubt":true}}},"report":null}`},
		} {
			b, err := tx.CreateBucketIfNotExists([]byte(bucket))
			errs = append(errs, err)
			for k, v := range entries {
				errs = append(errs, b.Put([]byte(k), []byte(v)))
			}
		}
		return errors.Join(errs...)
	})
	if err := errors.Join(err, db.Close()); err != nil {
		t.Fatal(err)
	}
}

// TestStoreOfEarlierVersionIsTakenOver: the names and encodings on disk never change, so
// that an agent continues with the data directory of an earlier version.
func TestStoreOfEarlierVersionIsTakenOver(t *testing.T) {
	path := filepath.Join(t.TempDir(), "agent.db")
	earlierFile(t, path)
	s, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	c, err := s.Load()
	if err != nil {
		t.Fatal(err)
	}
	if s.NodeID != "node-1" || s.ID != "store-1" || s.Starts != 5 {
		t.Errorf("node %q, store %q, starts %d", s.NodeID, s.ID, s.Starts)
	}
	if c.Position != (link.Position{Epoch: "raft", Sequence: 9}) || c.Master != (MasterTerm{Incarnation: 2, Term: 5}) {
		t.Errorf("position %v, master %v", c.Position, c.Master)
	}
	if c.Orders["aaaa"].GetIndex() != 7 || !c.Forgotten["bbbb"] {
		t.Errorf("orders %v, forgotten %v", c.Orders, c.Forgotten)
	}
	task := c.Records["aaaa"].Actual.Tasks["main"]
	if task.Phase != reconcile.Up || task.Run != 2 || task.Health != health.Unhealthy || task.UnhealthyReason != "failed its check" ||
		task.RunsSinceHealthy != 1 || !task.StartUncertain {
		t.Errorf("task %+v", task)
	}
	l, err := s.Timeline("one", func() time.Duration { return time.Hour }, c)
	if want := time.Date(2026, 1, 1, 1, 0, 0, 0, time.UTC); err != nil || !l.Now().Equal(want) {
		t.Errorf("the timeline reads %s, want %s: %v", l.Now(), want, err)
	}
}

// TestWriterStoresWhatLoadReads: after a restart the store has a written record and order,
// and lacks a removed record.
func TestWriterStoresWhatLoadReads(t *testing.T) {
	path := filepath.Join(t.TempDir(), "agent.db")
	earlierFile(t, path)
	s, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	b := OrderBatch([]*nusav1.AllocOrder{{Allocation: &nusav1.Allocation{Id: "cccc"}, Index: 11}}, []string{"aaaa"}, link.Position{Epoch: "raft", Sequence: 11})
	b.Removed["bbbb"] = true
	if err := errors.Join(s.Write(b), s.Close()); err != nil {
		t.Fatal(err)
	}
	s, err = Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	c, err := s.Load()
	if err != nil || len(c.Orders) != 2 || !c.Forgotten["aaaa"] || c.Forgotten["bbbb"] || c.Position.Sequence != 11 || s.Starts != 6 {
		t.Errorf("%v: %+v, starts %d", err, c, s.Starts)
	}
}
