package federation

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3client"
	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"github.com/nusa-scheduler/nusa/bench/report"
	"github.com/nusa-scheduler/nusa/global/store"
)

const (
	// etcdClients is the number of clients that write at the same time.
	etcdClients = 64
	// jobsPerCall is the number of jobs of one transaction when jobs are submitted by
	// unary calls. jobsPerBatch is the number when they are submitted by stream. etcd
	// accepts 128 operations in a transaction, and each job has four.
	jobsPerCall, jobsPerBatch = 1, 31
	// etcdStart is how long etcd is loaded before the measurement begins. etcdWithin
	// bounds the start of etcd.
	etcdStart  = 300 * time.Millisecond
	etcdWithin = 30 * time.Second
)

// jobKeys are the keys of one job and the sizes of their values, like those that a global
// server stores: the job, its slot, the slot again when it is accepted, and an entry of
// the audit log.
var jobKeys = []struct {
	key   string
	bytes int
}{{"jobs", 290}, {"slots", 125}, {"accepted", 125}, {"audit", 75}}

// EtcdRate is the JSON output of `nusa bench federation-etcd`.
type EtcdRate struct {
	JobsPerS float64 `json:"jobs_per_s"`
}

// RestartParts are the parts of Result.ServingS that no server with the same data can avoid, in
// seconds: an etcd member opens a copy of the killed server's data, and reads all keys. Nothing is done with the
// keys. The JSON output of `nusa bench federation-etcd --read` has the same form.
type RestartParts struct {
	EtcdOpen float64 `json:"etcd_open"`
	EtcdRead float64 `json:"etcd_read"`
	// CPU is the CPU time of both. Keys is the number of keys.
	CPU  float64 `json:"cpu"`
	Keys int     `json:"keys"`
}

// readAlone measures the parts of a restart in another process. dir is a copy of an etcd's folder.
func (m *measurement) readAlone(ctx context.Context, dir string) (*RestartParts, error) {
	m.o.progress("opening a copy of the data with etcd alone")
	r := &RestartParts{}
	return r, m.alone(ctx, r, dir, "--read")
}

// ReadAlone opens the data of an etcd member in this process, and reads all keys once.
func ReadAlone(ctx context.Context, dir string) (RestartParts, error) {
	ports, err := report.FreePorts(1)
	if err != nil {
		return RestartParts{}, err
	}
	start := time.Now()
	s, err := store.OpenEtcd(ctx, store.EtcdConfig{Name: "alone", DataDir: dir, PeerAddr: fmt.Sprintf("127.0.0.1:%d", ports[0])})
	if err != nil {
		return RestartParts{}, err
	}
	defer s.Close()
	out := RestartParts{EtcdOpen: report.Seconds(time.Since(start))}
	start = time.Now()
	if _, err := s.List(ctx, "/", func(store.KV) error { out.Keys++; return nil }); err != nil {
		return RestartParts{}, err
	}
	out.EtcdRead = report.Seconds(time.Since(start))
	cpu, err := report.CPUTime(os.Getpid())
	out.CPU = report.Seconds(cpu)
	return out, err
}

// etcdAlone measures etcd in another process, with its data on the disk that the server
// uses.
func (m *measurement) etcdAlone(ctx context.Context) (float64, error) {
	if m.o.Etcd == 0 {
		return 0, nil
	}
	m.o.progress("measuring etcd alone")
	dir, err := os.MkdirTemp(m.o.Dir, "nusa-bench-etcd-")
	if err != nil {
		return 0, fmt.Errorf("--dir: %w", err)
	}
	defer os.RemoveAll(dir)
	jobs := jobsPerCall
	if m.o.Stream {
		jobs = jobsPerBatch
	}
	r := EtcdRate{}
	err = m.alone(ctx, &r, dir, "--jobs", fmt.Sprint(jobs), "--for", m.o.Etcd.String())
	return r.JobsPerS, err
}

// alone runs `nusa bench federation-etcd` for a folder, and reads its output into result.
func (m *measurement) alone(ctx context.Context, result any, dir string, flags ...string) error {
	cmd := report.Process(m.exe, append([]string{"bench", "federation-etcd", dir}, flags...)...)
	var out, why bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &why
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start etcd alone: %w", err)
	}
	defer context.AfterFunc(ctx, func() { _ = cmd.Process.Kill() })()
	if err := cmd.Wait(); err != nil {
		lines := strings.Split(strings.TrimSpace(why.String()), "\n")
		return report.Cause(ctx, fmt.Errorf("etcd alone: %w: %s", err, lines[len(lines)-1]))
	}
	if err := json.Unmarshal(out.Bytes(), result); err != nil {
		return fmt.Errorf("etcd alone: its output is no result: %w", err)
	}
	return nil
}

// EtcdAlone runs an etcd member in this process, with its data in dir. It measures for the
// duration d how many jobs a second etcd stores, or until the first transaction has ended if the disk is slow. Each
// transaction compares a key, as the transactions of the active global server do.
func EtcdAlone(ctx context.Context, dir string, jobs int, d time.Duration) (EtcdRate, error) {
	member, err := startMember(ctx, dir)
	if err != nil {
		return EtcdRate{}, err
	}
	defer member.Close()
	client := v3client.New(member.Server)
	defer client.Close()
	put, err := client.Put(ctx, "leader", "1")
	if err != nil {
		return EtcdRate{}, err
	}
	guard := clientv3.Compare(clientv3.ModRevision("leader"), "=", put.Header.GetRevision())
	var next, stored, late atomic.Int64
	g, ctx := errgroup.WithContext(ctx)
	begin := time.Now().Add(etcdStart)
	for range etcdClients {
		g.Go(func() error {
			for time.Since(begin) < d || stored.Load() == 0 {
				var ops []clientv3.Op
				for range jobs {
					ops = append(ops, putJob(next.Add(1))...)
				}
				answer, err := client.Txn(ctx).If(guard).Then(ops...).Commit()
				if err != nil {
					return err
				}
				if !answer.Succeeded {
					return errors.New("the compared key has changed")
				}
				passed := time.Since(begin)
				switch {
				case passed > 0 && passed < d:
					stored.Add(int64(jobs))
				case passed >= d && stored.CompareAndSwap(0, int64(jobs)):
					late.Store(int64(passed))
				}
			}
			return nil
		})
	}
	err = g.Wait()
	return EtcdRate{JobsPerS: report.PerSecond(int(stored.Load()), max(d, time.Duration(late.Load())))}, err
}

func putJob(i int64) []clientv3.Op {
	var out []clientv3.Op
	for _, k := range jobKeys {
		out = append(out, clientv3.OpPut(fmt.Sprintf("/bench/%s/default/job-%09d", k.key, i), strings.Repeat("x", k.bytes)))
	}
	return out
}

func startMember(ctx context.Context, dir string) (*embed.Etcd, error) {
	ports, err := report.FreePorts(2)
	if err != nil {
		return nil, err
	}
	at := func(i int) []url.URL {
		return []url.URL{{Scheme: "http", Host: fmt.Sprintf("127.0.0.1:%d", ports[i])}}
	}
	cfg := embed.NewConfig()
	cfg.Name, cfg.Dir = "alone", filepath.Join(dir, "etcd")
	cfg.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.NewNop())
	cfg.ListenClientUrls, cfg.AdvertiseClientUrls = at(0), at(0)
	cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = at(1), at(1)
	cfg.InitialCluster = cfg.InitialClusterFromName(cfg.Name)
	cfg.TickMs, cfg.ElectionMs = 20, 200 // like the member in a global server
	member, err := embed.StartEtcd(cfg)
	if err != nil {
		return nil, fmt.Errorf("start etcd: %w", err)
	}
	late := time.NewTimer(etcdWithin)
	defer late.Stop()
	select {
	case <-member.Server.ReadyNotify():
		return member, nil
	case err = <-member.Err():
	case <-late.C:
		err = fmt.Errorf("not ready within %s", etcdWithin)
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	member.Close()
	return nil, fmt.Errorf("start etcd: %w", err)
}
