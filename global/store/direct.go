package store

import (
	"context"
	"errors"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/etcdserver"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3rpc"
	"go.etcd.io/etcd/server/v3/etcdserver/txn"
	"go.etcd.io/etcd/server/v3/storage/mvcc"
	"go.uber.org/zap"
)

// direct passes transactions to the embedded member. The member checks them like transactions of a
// client. But direct copies nothing on the way, while a client builds each key and value three
// times.
type direct struct {
	kv     etcdserverpb.KVServer
	server *etcdserver.EtcdServer
}

func newDirect(s *etcdserver.EtcdServer) *direct { return &direct{v3rpc.NewQuotaKVServer(s), s} }

// keys reads keys with their values at a revision that the member has reached. With a client, etcd
// would also count all keys up to end, once for each page.
func (d *direct) keys(ctx context.Context, from, end string, revision, limit int64) (*clientv3.GetResponse, error) {
	resp, _, err := txn.Range(ctx, zap.NewNop(), d.server.KV(), &etcdserverpb.RangeRequest{
		Key: []byte(from), RangeEnd: []byte(end), Revision: revision, Limit: limit,
	}, false)
	if errors.Is(err, mvcc.ErrCompacted) {
		err = rpctypes.ErrCompacted
	}
	return (*clientv3.GetResponse)(resp), err
}

// The messages of one compare and of one write. They are allocated together.
type (
	compareMessages struct {
		compare etcdserverpb.Compare
		mod     etcdserverpb.Compare_ModRevision
		create  etcdserverpb.Compare_CreateRevision
	}
	putMessages struct {
		op  etcdserverpb.RequestOp
		of  etcdserverpb.RequestOp_RequestPut
		put etcdserverpb.PutRequest
	}
)

// txn carries out a transaction. leases has one element for each of ops: the lease of the key, or
// 0 for a key that does not expire.
func (d *direct) txn(ctx context.Context, known *revisions, compares []Compare, ops []Op, leases []clientv3.LeaseID) (outcome, error) {
	req := &etcdserverpb.TxnRequest{
		Compare: make([]*etcdserverpb.Compare, len(compares)), Success: make([]*etcdserverpb.RequestOp, len(ops)),
	}
	cmps, puts := make([]compareMessages, len(compares)), make([]putMessages, len(ops))
	keys := newKeyBytes(compares, ops)
	for i, c := range compares {
		m := &cmps[i]
		m.compare.Key, m.compare.Result = keys.of(c.Key), etcdserverpb.Compare_EQUAL
		if c.Target == TargetCreate {
			m.create.CreateRevision = known.compared(c.Revision)
			m.compare.Target, m.compare.TargetUnion = etcdserverpb.Compare_CREATE, &m.create
		} else {
			m.mod.ModRevision = known.compared(c.Revision)
			m.compare.Target, m.compare.TargetUnion = etcdserverpb.Compare_MOD, &m.mod
		}
		req.Compare[i] = &m.compare
	}
	for i, op := range ops {
		if op.Delete {
			req.Success[i] = deletion(op)
			continue
		}
		m := &puts[i]
		m.put.Key, m.put.Value, m.put.Lease = keys.of(op.Key), op.Value, int64(leases[i])
		m.of.RequestPut = &m.put
		m.op.Request = &m.of
		req.Success[i] = &m.op
	}
	resp, err := d.kv.Txn(ctx, req)
	if err != nil {
		return outcome{}, clientv3.ContextError(ctx, err)
	}
	return outcome{resp.GetSucceeded(), resp.GetHeader().GetRevision()}, nil
}

func deletion(op Op) *etcdserverpb.RequestOp {
	req := &etcdserverpb.DeleteRangeRequest{Key: []byte(op.Key)}
	if op.End != "" {
		req.RangeEnd = []byte(op.End)
	}
	return &etcdserverpb.RequestOp{Request: &etcdserverpb.RequestOp_RequestDeleteRange{RequestDeleteRange: req}}
}

// keyBytes holds the bytes of all keys of a transaction.
type keyBytes []byte

func newKeyBytes(compares []Compare, ops []Op) keyBytes {
	size := 0
	for _, c := range compares {
		size += len(c.Key)
	}
	for _, op := range ops {
		size += len(op.Key)
	}
	return make(keyBytes, 0, size)
}

func (b *keyBytes) of(key string) []byte {
	from := len(*b)
	*b = append(*b, key...)
	return (*b)[from:len(*b):len(*b)]
}
