package parts

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/nusa-scheduler/nusa/global/store"
	"github.com/nusa-scheduler/nusa/internal/network"
	"github.com/nusa-scheduler/nusa/internal/serve"
	"github.com/nusa-scheduler/nusa/internal/submits"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// Config says where the parts store and serve.
type Config struct {
	// Dir is the folder of etcd.
	Dir string
	// GRPCAddr is the address for callers and regions. PeerAddr is etcd's peer address.
	GRPCAddr, PeerAddr string
}

// parts is what a running process keeps.
type parts struct {
	store *store.Etcd
	// guard is compared by each transaction, as the election key of a global server is.
	guard    store.Compare
	requests chan request
	// written is the number of the latest records of the logs: at first the revision of the store,
	// which is at least as great as the number of an earlier process. Only write uses it.
	written uint64
	// carry is a request that did not fit into the latest transaction. Only write uses it.
	carry *request

	mu sync.Mutex
	// sessions are the connected regions. next is the number of the region whose turn it is.
	sessions []*session
	next     int
	// known are the regions whose record is stored.
	known map[string]bool
	// jobs are all jobs, by namespace/name.
	jobs map[string]*job
	// offered are the slots that no region has accepted yet, by key.
	offered map[string]*nusav1.Slot
}

// Run serves until ctx ends or a transaction fails. It returns nil if ctx has ended.
func Run(ctx context.Context, cfg Config) error {
	web, err := serve.Open(ctx, serve.Options{Net: network.Host(), GRPCAddr: cfg.GRPCAddr, Codec: submits.NewCodec()})
	if err != nil {
		return err
	}
	p, err := open(ctx, cfg)
	if err != nil {
		return errors.Join(err, web.Close())
	}
	defer p.store.Close()
	nusav1.RegisterFederationServer(web.GRPC, &federationAPI{p: p})
	submits.Register(web.GRPC, &jobsAPI{p: p})
	nusav1.RegisterSystemServer(web.GRPC, systemAPI{})
	g, running := errgroup.WithContext(ctx)
	g.Go(func() error { return web.Run(running) })
	g.Go(func() error { return p.write(running) })
	g.Go(func() error {
		select {
		case err := <-p.store.Err():
			return fmt.Errorf("embedded etcd member: %w", err)
		case <-running.Done():
			return nil
		}
	})
	err = g.Wait()
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// open opens the store and reads its records.
func open(ctx context.Context, cfg Config) (*parts, error) {
	db, err := store.OpenEtcd(ctx, store.EtcdConfig{Name: "parts", DataDir: cfg.Dir, PeerAddr: cfg.PeerAddr})
	if err != nil {
		return nil, err
	}
	p := &parts{
		store: db, requests: make(chan request, waiting),
		known: map[string]bool{}, jobs: map[string]*job{}, offered: map[string]*nusav1.Slot{},
	}
	if err := p.load(ctx); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return p, nil
}

// load reads all records, and writes the key that each transaction compares.
func (p *parts) load(ctx context.Context) error {
	for prefix, visit := range map[string]func(key string, value []byte){
		regionPrefix: func(key string, _ []byte) { p.known[key] = true },
		jobPrefix:    func(key string, value []byte) { p.jobs[key] = &job{record: value} },
		slotPrefix:   func(string, []byte) {}, // the regions have the slots
	} {
		_, err := p.store.List(ctx, prefix, func(kv store.KV) error {
			visit(kv.Key[len(prefix):], kv.Value)
			return nil
		})
		if err != nil {
			return err
		}
	}
	revision, err := p.store.Txn(ctx, nil, []store.Op{store.Put(leaderKey, []byte("parts"))})
	p.guard, p.written = store.Mod(leaderKey, revision), uint64(revision)
	return err
}

// systemAPI says that this process serves.
type systemAPI struct {
	nusav1.UnimplementedSystemServer
}

// Info implements nusav1.SystemServer.
func (systemAPI) Info(context.Context, *nusav1.InfoRequest) (*nusav1.InfoResponse, error) {
	return &nusav1.InfoResponse{Role: "parts", Name: "parts", Leader: true, FederationId: federationID}, nil
}
