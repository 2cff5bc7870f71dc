package store

import (
	"errors"
	"log/slog"
	"strings"
	"testing"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
)

func openForUsage(t *testing.T, cfg EtcdConfig) *Etcd {
	t.Helper()
	cfg.Logger = slog.New(slog.DiscardHandler)
	e, err := OpenEtcd(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = e.Close() })
	return e
}

// TestQuotaOfASharedEtcd: for an etcd that others run, the limit is on its bytes on disk. A third
// of these bytes may be in use. The quota of the server's own member does not count.
func TestQuotaOfASharedEtcd(t *testing.T) {
	t.Parallel()
	const quota = 16 << 20
	member := openForUsage(t, EtcdConfig{Name: "one", DataDir: t.TempDir(), ClientAddr: "127.0.0.1:0", PeerAddr: "127.0.0.1:0", Quota: quota})
	shared := openForUsage(t, EtcdConfig{Endpoints: []string{member.ClientAddr()}, Quota: 1 << 40})
	for name, e := range map[string]*Etcd{"own": member, "shared": shared} {
		if use, err := e.Usage(t.Context()); err != nil || use.Quota != quota {
			t.Errorf("%s: %+v, %v, want a quota of %d", name, use, err, int64(quota))
		}
	}
}

// TestResumeEndsOnlyTheSpaceAlarm: the alarm about a damaged database remains.
func TestResumeEndsOnlyTheSpaceAlarm(t *testing.T) {
	t.Parallel()
	e := openForUsage(t, EtcdConfig{Name: "one", DataDir: t.TempDir(), PeerAddr: "127.0.0.1:0"})
	for _, kind := range []etcdserverpb.AlarmType{etcdserverpb.AlarmType_NOSPACE, etcdserverpb.AlarmType_CORRUPT} {
		arm := &etcdserverpb.AlarmRequest{Action: etcdserverpb.AlarmRequest_ACTIVATE, MemberID: uint64(e.member.Server.MemberID()), Alarm: kind}
		if _, err := e.member.Server.Alarm(t.Context(), arm); err != nil {
			t.Fatal(err)
		}
	}
	if err := e.Resume(t.Context()); err != nil {
		t.Fatal(err)
	}
	left, err := e.client.AlarmList(t.Context())
	if err != nil || len(left.Alarms) != 1 || left.Alarms[0].GetAlarm() != etcdserverpb.AlarmType_CORRUPT {
		t.Errorf("alarms after Resume: %v, %v, want only that of the damage", left, err)
	}
}

// TestACompactionSparesAListThatBegins: the history is dropped neither before nor after the first
// page of a list is read. It is dropped once the list has ended.
func TestACompactionSparesAListThatBegins(t *testing.T) {
	t.Parallel()
	e := openForUsage(t, EtcdConfig{Name: "one", DataDir: t.TempDir(), PeerAddr: "127.0.0.1:0"})
	write := func() {
		t.Helper()
		if _, err := e.Txn(t.Context(), nil, []Op{Put("/key", nil)}); err != nil {
			t.Fatal(err)
		}
	}
	compact := func() {
		t.Helper()
		if err := e.Compact(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	for round := range 2 { // the second one begins after a compaction
		write()
		begun := e.beginning()
		p := &pages{e: e, from: "/", end: "0", limit: PageSize}
		first := p.read(t.Context())
		if first.err != nil {
			t.Fatal(first.err)
		}
		p.revision = first.resp.Header.Revision
		write()
		compact()
		if next := p.read(t.Context()); next.err != nil {
			t.Errorf("round %d: the page after a compaction: %v", round, next.err)
		}
		done := e.reading(p.revision)
		begun()
		compact()
		if next := p.read(t.Context()); next.err != nil {
			t.Errorf("round %d: the page after a second compaction: %v", round, next.err)
		}
		done()
		compact()
		if next := p.read(t.Context()); !errors.Is(e.typed(next.err), ErrCompacted) {
			t.Errorf("round %d: the page after the list: %v", round, next.err)
		}
	}
}

// TestMissingMembers: an embedded member is there as long as its server is a candidate, and an
// etcd outside this process at the addresses that respond.
func TestMissingMembers(t *testing.T) {
	t.Parallel()
	member, err := OpenEtcd(t.Context(), EtcdConfig{
		Name: "one", DataDir: t.TempDir(), ClientAddr: "127.0.0.1:0", PeerAddr: "127.0.0.1:0", Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { member.Close() })
	const nobody = "127.0.0.1:1"
	outside, err := OpenEtcd(t.Context(), EtcdConfig{Endpoints: []string{member.ClientAddr(), nobody}, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { outside.Close() })
	for _, c := range []struct {
		name    string
		of      *Etcd
		running []string
		want    string
	}{
		{"its server runs", member, []string{"two", "one"}, ""},
		{"its server does not run", member, []string{"two"}, "the etcd member of global server one does not run, 1 of 1: "},
		{"outside", outside, nil, "etcd does not respond at " + nobody + ", 1 of 2 addresses"},
	} {
		got, err := c.of.Missing(t.Context(), c.running)
		if err != nil || len(got) > 1 || !strings.HasPrefix(strings.Join(got, ""), c.want) || (c.want == "") != (len(got) == 0) {
			t.Errorf("%s: %q, %v", c.name, got, err)
		}
	}
}
