package enroll

import (
	"context"
	"encoding/hex"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/security/audit"
	"github.com/nusa-scheduler/nusa/security/join"
	"github.com/nusa-scheduler/nusa/security/roster"
)

// PolicyKey is the key of the join policy of a region, a nusav1.JoinPolicy.
const PolicyKey = policyKey

// Bounds of one call about registered nodes.
const (
	maxRegister      = 2000
	maxRegisterBytes = 2 << 20
	// maxGrace bounds the grace.
	maxGrace = 365 * 24 * time.Hour
)

// NodeKey is the key of the record about a registered node, a nusav1.RegisteredNode.
func NodeKey(name string) string { return nodePrefix + name }

// ReadNode reads the record of a registered node.
func ReadNode(value []byte) (*nusav1.RegisteredNode, error) {
	n := &nusav1.RegisteredNode{}
	return n, proto.Unmarshal(value, n)
}

// checkRegion returns the store if a call is about this region.
func (s Members) checkRegion(region string) (Store, error) {
	store, err := s.records()
	if err == nil && region != s.Region {
		err = status.Errorf(codes.InvalidArgument, "region %q: this is a server of region %s", region, s.Region)
	}
	return store, err
}

// Register adds nodes that may join later.
func (s Members) Register(ctx context.Context, req *nusav1.RegisterRequest) (*nusav1.RegisterResponse, error) {
	store, err := s.checkRegion(req.GetRegion())
	if err != nil {
		return nil, err
	}
	if n := len(req.GetNodes()); n == 0 || n > maxRegister || proto.Size(req) > maxRegisterBytes {
		return nil, status.Errorf(codes.InvalidArgument, "%d nodes of %d bytes: a call may have 1 to %d nodes of at most %d bytes", n, proto.Size(req), maxRegister, maxRegisterBytes)
	}
	var nodes []roster.Node
	seen := map[string]bool{}
	for _, r := range req.GetNodes() {
		n, err := nodeOf(r)
		if err == nil {
			err = n.Check()
		}
		if err == nil && seen[n.Name] {
			err = fmt.Errorf("node %s is there twice", n.Name)
		}
		if err != nil {
			return nil, status.Error(codes.InvalidArgument, err.Error())
		}
		seen[n.Name] = true
		nodes = append(nodes, *n)
	}
	out := &nusav1.RegisterResponse{}
	err = retry(func() error {
		c, err := s.registration(ctx, store, nodes, req.GetReplace())
		if err != nil || len(c.Puts) == 0 {
			return err
		}
		c.Audit = registerEntry(req.GetRegion(), nodes[0].Name, len(c.Puts), "register")
		out.Changed = int32(len(c.Puts))
		return store.Change(ctx, c)
	})
	if err != nil {
		return nil, err
	}
	s.Log.Info("nodes are registered", "nodes", len(nodes), "changed", out.GetChanged())
	return out, nil
}

// registration returns the change that registers nodes.
func (s Members) registration(ctx context.Context, store Store, nodes []roster.Node, replace bool) (Change, error) {
	var c Change
	known := 0
	err := store.List(ctx, nodePrefix, func(string, []byte, uint64) error {
		known++
		return nil
	})
	if err != nil {
		return c, err
	}
	old := roster.Roster{}
	for _, n := range nodes {
		record := &nusav1.RegisteredNode{}
		version, err := read(ctx, store, NodeKey(n.Name), record)
		if err != nil {
			return c, err
		}
		c.Checks = append(c.Checks, Check{NodeKey(n.Name), version})
		if version > 0 {
			was, err := nodeOf(record)
			if err != nil {
				return c, err
			}
			old[n.Name] = *was
		}
	}
	if _, err := old.Add(nodes); err != nil && !replace {
		return c, status.Error(codes.AlreadyExists, err.Error())
	}
	for _, n := range nodes {
		was, exists := old[n.Name]
		if exists && was.Equal(n) {
			continue
		}
		if !exists {
			known++
		}
		p, err := put(NodeKey(n.Name), registeredOf(n))
		if err != nil {
			return c, err
		}
		c.Puts = append(c.Puts, p)
	}
	if known > roster.MaxNodes {
		return c, status.Errorf(codes.ResourceExhausted, "%d registered nodes, at most %d", known, roster.MaxNodes)
	}
	return c, nil
}

// registeredOf returns the stored form of a registered node.
func registeredOf(n roster.Node) *nusav1.RegisteredNode {
	out := &nusav1.RegisteredNode{Name: n.Name, Pool: n.Pool, Labels: n.Labels, Description: n.Description, Priority: int32(n.Priority)}
	if n.Address.IsValid() {
		out.Address = n.Address.String()
	}
	return out
}

// registerEntry returns the entry of the audit trail for a change of registered nodes.
func registerEntry(region, first string, n int, reason string) *audit.Entry {
	e := &audit.Entry{Verb: "register", Kind: "node", Name: first, Region: region, Reason: reason}
	if n > 1 {
		e.Reason = fmt.Sprintf("%s: this and %d others", reason, n-1)
	}
	return e
}

// Unregister removes registrations. Members that have joined stay.
func (s Members) Unregister(ctx context.Context, req *nusav1.UnregisterRequest) (*nusav1.RegisterResponse, error) {
	store, err := s.checkRegion(req.GetRegion())
	if err != nil {
		return nil, err
	}
	if n := len(req.GetNames()); n == 0 || n > maxRegister {
		return nil, status.Errorf(codes.InvalidArgument, "%d nodes: a call may have 1 to %d", n, maxRegister)
	}
	out := &nusav1.RegisterResponse{}
	err = retry(func() error {
		var c Change
		first := ""
		done := map[string]bool{}
		for _, name := range req.GetNames() {
			_, version, err := store.Get(ctx, NodeKey(name))
			if err != nil {
				return err
			}
			if version > 0 && !done[name] {
				done[name] = true
				c.Checks, c.Deletes = append(c.Checks, Check{NodeKey(name), version}), append(c.Deletes, NodeKey(name))
				if first == "" {
					first = name
				}
			}
		}
		out.Changed = int32(len(c.Deletes))
		if len(c.Deletes) == 0 {
			return nil
		}
		c.Audit = registerEntry(req.GetRegion(), first, len(c.Deletes), "off")
		return store.Change(ctx, c)
	})
	return out, err
}

// GetPolicy returns what an agent of this region needs to join.
func (s Members) GetPolicy(ctx context.Context, req *nusav1.GetJoinPolicyRequest) (*nusav1.JoinPolicy, error) {
	store, err := s.checkRegion(req.GetRegion())
	if err != nil {
		return nil, err
	}
	p, grace, record, _, err := policy(ctx, store)
	if err != nil {
		return nil, err
	}
	return s.policyOf(p, grace, record)
}

// policyOf returns a policy for a caller.
func (s Members) policyOf(p join.Policy, grace time.Duration, record *nusav1.JoinPolicy) (*nusav1.JoinPolicy, error) {
	root, err := s.rootHash()
	return &nusav1.JoinPolicy{
		Region: s.Region, Policy: p.String(), Grace: durationpb.New(grace), Require: record.GetRequire(), RootHash: hex.EncodeToString(root[:]),
	}, err
}

// SetPolicy changes what an agent of this region needs to join. The caller has compiled the condition.
func (s Members) SetPolicy(ctx context.Context, req *nusav1.SetJoinPolicyRequest) (*nusav1.JoinPolicy, error) {
	store, err := s.checkRegion(req.GetRegion())
	if err != nil {
		return nil, err
	}
	if g := req.GetGrace(); g != nil && (g.AsDuration() < 0 || g.AsDuration() > maxGrace) {
		return nil, status.Errorf(codes.InvalidArgument, "grace %s: allowed are 0 to %s", g.AsDuration(), maxGrace)
	}
	var out *nusav1.JoinPolicy
	err = retry(func() error {
		p, grace, record, version, err := policy(ctx, store)
		if err != nil {
			return err
		}
		if text := req.GetPolicy(); text != "" {
			p, err = join.ParsePolicy(text)
			if err != nil {
				return status.Error(codes.InvalidArgument, err.Error())
			}
		}
		if req.GetGrace() != nil {
			grace = req.GetGrace().AsDuration()
		}
		next := &nusav1.JoinPolicy{Policy: p.String(), Grace: durationpb.New(grace), Require: record.GetRequire()}
		if req.Require != nil {
			next.Require = req.GetRequire()
		}
		out, err = s.policyOf(p, grace, next)
		if err != nil {
			return err
		}
		e := &audit.Entry{Verb: "set", Kind: "join policy", Name: req.GetRegion(), Region: req.GetRegion(), Reason: fmt.Sprintf("%s, grace %s, require %q", p, grace, next.GetRequire())}
		return change(ctx, store, []Check{{policyKey, version}}, map[string]proto.Message{policyKey: next}, e)
	})
	return out, err
}
