package store

import (
	"log/slog"
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

// TestQuotaOfASharedEtcd: an etcd that others run bounds its bytes on disk, and a third of them
// may be in use. The bound of the server's own member does not count.
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

// TestResumeEndsOnlyTheSpaceAlarm: the alarm about a damaged database stays.
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
