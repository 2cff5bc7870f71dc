package store

import (
	"context"
	"errors"
	"slices"
	"sync"

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

// messages is the memory of the messages of a transaction. A member encodes them before Txn returns, so the next
// transaction uses the memory again.
type messages struct {
	request  etcdserverpb.TxnRequest
	compares []compareMessages
	puts     []putMessages
	keys     keyBytes
}

var messagesPool = sync.Pool{New: func() any { return new(messages) }}

// reset makes room for a transaction.
func (m *messages) reset(compares []Compare, ops []Op) {
	m.request.Compare = slices.Grow(m.request.Compare[:0], len(compares))[:len(compares)]
	m.request.Success = slices.Grow(m.request.Success[:0], len(ops))[:len(ops)]
	m.compares, m.puts = slices.Grow(m.compares[:0], len(compares))[:len(compares)], slices.Grow(m.puts[:0], len(ops))[:len(ops)]
	m.keys = slices.Grow(m.keys[:0], keysSize(compares, ops))
}

// release keeps the memory, without the values.
func (m *messages) release() {
	for i := range m.puts {
		m.puts[i].put.Value = nil
	}
	clear(m.request.Success) // each deletion has a message of its own
	messagesPool.Put(m)
}

// txn carries out a transaction. leases has one element for each of ops: the lease of the key, or
// 0 for a key that does not expire.
func (d *direct) txn(ctx context.Context, known *revisions, compares []Compare, ops []Op, leases []clientv3.LeaseID) (outcome, error) {
	all := messagesPool.Get().(*messages)
	defer all.release()
	all.reset(compares, ops)
	req := &all.request
	for i, c := range compares {
		m := &all.compares[i]
		m.compare.Key, m.compare.Result = all.keys.of(c.Key), etcdserverpb.Compare_EQUAL
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
		m := &all.puts[i]
		m.put.Key, m.put.Value, m.put.Lease = all.keys.of(op.Key), op.Value, int64(leases[i])
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

// keysSize returns the number of bytes of all keys.
func keysSize(compares []Compare, ops []Op) (size int) {
	for _, c := range compares {
		size += len(c.Key)
	}
	for _, op := range ops {
		size += len(op.Key)
	}
	return size
}

func (b *keyBytes) of(key string) []byte {
	from := len(*b)
	*b = append(*b, key...)
	return (*b)[from:len(*b):len(*b)]
}
