package enroll

import (
	"context"
	"crypto/x509"
	"errors"
	"log/slog"
	"net/netip"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/security/identity"
	"github.com/nusa-scheduler/nusa/security/join"
	"github.com/nusa-scheduler/nusa/security/pki"
	"github.com/nusa-scheduler/nusa/security/recorder"
	"github.com/nusa-scheduler/nusa/security/rights"
	"github.com/nusa-scheduler/nusa/security/trust"
)

// Server has the services of one tier. All fields but Log are required.
type Server struct {
	// Source is the identity of this server. Without one nobody can join.
	Source *trust.Source
	// Region is that of the server, and empty at the global tier.
	Region string
	// Store returns where the records are. It returns an error, which is a gRPC status, if this
	// server cannot write now.
	Store func() (Store, error)
	// Issuer returns who signs.
	Issuer func() (*Issuer, error)
	Now    func() time.Time
	Log    *slog.Logger

	failures failures
	sweeps   sweeps
}

// Register adds the service Identity. A tier adds the other services itself, because the global
// tier asks regions for their part.
func (s *Server) Register(to grpc.ServiceRegistrar) {
	nusav1.RegisterIdentityServer(to, &identityAPI{s: s})
}

// retries bounds how often a request is decided again because a record has changed.
const retries = 8

// retry calls f until it does not fail with ErrChanged.
func retry(f func() error) error {
	err := ErrChanged
	for n := 0; n < retries && errors.Is(err, ErrChanged); n++ {
		err = f()
	}
	if errors.Is(err, ErrChanged) {
		return status.Error(codes.Aborted, "other calls have changed the same records: repeat the call")
	}
	return err
}

// ready returns the store and the issuer.
func (s *Server) ready() (Store, *Issuer, error) {
	if s == nil || s.Source == nil {
		return nil, nil, status.Error(codes.FailedPrecondition, "this server has no identity: nobody can join with a token")
	}
	issuer, err := s.Issuer()
	if err != nil {
		return nil, nil, status.Error(codes.FailedPrecondition, err.Error())
	}
	store, err := s.Store()
	return store, issuer, err
}

// roots returns the roots that this server trusts.
func (s *Server) roots() (*pki.Roots, error) { return pki.NewRoots(s.Source.Roots()...) }

// rootHash returns the hash of the root from which this server has its own certificate.
func (s *Server) rootHash() (join.Hash, error) {
	chain, err := s.Source.Chain()
	if err != nil {
		return join.Hash{}, err
	}
	for _, root := range s.Source.Roots() {
		roots, err := pki.NewRoots(root)
		if err != nil {
			return join.Hash{}, err
		}
		if _, err := pki.Verify(chain, roots, chain[0].NotBefore); err == nil {
			return join.HashOf(root.RawSubjectPublicKeyInfo), nil
		}
	}
	return join.Hash{}, errors.New("no root of this server has issued its own certificate")
}

// caller returns who makes a call, for records. said is what a global server says, which passes
// on the calls of others.
func caller(ctx context.Context, said string) string {
	if call := rights.Of(ctx); call != nil {
		return call.Who.Name
	}
	id, ok := trust.CallerOf(ctx)
	switch {
	case !ok:
		return ""
	case id.Kind == identity.Global && said != "":
		return said
	}
	return recorder.Name(id)
}

// address returns the address from which a call comes. Another server of the tier and region, which
// forwards a call, has noted the address of its caller.
func (s *Server) address(ctx context.Context) netip.Addr {
	if id, ok := trust.PeerOf(ctx); ok && (id.Kind == identity.Server && id.Region == s.Region && s.Region != "" || id.Kind == identity.Global && s.Region == "") {
		if text := metadata.ValueFromIncomingContext(ctx, trust.AddressHeader); len(text) > 0 {
			a, _ := netip.ParseAddr(text[0])
			return a
		}
	}
	p, ok := peer.FromContext(ctx)
	if !ok {
		return netip.Addr{}
	}
	return trust.HostOf(p.Addr)
}

// hashOf returns the hash of a certificate's public key.
func hashOf(c *x509.Certificate) join.Hash { return join.HashOf(c.RawSubjectPublicKeyInfo) }

// policy reads what agents need to join.
func policy(ctx context.Context, store Store) (join.Policy, time.Duration, *nusav1.JoinPolicy, uint64, error) {
	record := &nusav1.JoinPolicy{}
	version, err := read(ctx, store, policyKey, record)
	if err != nil {
		return 0, 0, nil, 0, err
	}
	if version == 0 {
		return join.WithToken, join.DefaultGrace, record, 0, nil
	}
	p, grace := join.WithToken, join.DefaultGrace
	if record.GetPolicy() != "" {
		p, err = join.ParsePolicy(record.GetPolicy())
		if err != nil {
			return 0, 0, nil, 0, err
		}
	}
	if record.GetGrace() != nil {
		grace = record.GetGrace().AsDuration()
	}
	return p, grace, record, version, nil
}

// snapshot is what join decides about, with the versions of the records.
type snapshot struct {
	join.Snapshot
	memberKey string
	// joined is the id of the token with which the member has joined.
	joined string
	// pool is the pool that the record of the member fixes.
	pool   string
	checks []Check
}

// load reads what the store has about a member, its key and a token.
func (s *Server) load(ctx context.Context, store Store, id identity.ID, key join.Hash, token string) (*snapshot, error) {
	out := &snapshot{memberKey: memberKey(roles[id.Kind], id.Region, id.Name)}
	out.Federation, out.Region = s.Source.ID().Federation, s.Region
	p, grace, _, _, err := policy(ctx, store)
	if err != nil {
		return nil, err
	}
	out.Policy, out.Grace = p, grace
	if token != "" {
		record := &nusav1.TokenRecord{}
		version, err := read(ctx, store, tokenPrefix+token, record)
		if err != nil {
			return nil, err
		}
		if version > 0 {
			out.Token = tokenOf(record)
			out.checks = append(out.checks, Check{tokenPrefix + token, version})
		}
	}
	member := &nusav1.Member{}
	version, err := read(ctx, store, out.memberKey, member)
	if err != nil {
		return nil, err
	}
	out.checks = append(out.checks, Check{out.memberKey, version})
	if version > 0 {
		out.Member = ownerOf(member)
		out.joined, out.pool = member.GetToken(), member.GetPool()
	}
	out.Removed, err = removedAt(ctx, store, key)
	if err != nil {
		return nil, err
	}
	if id.Kind == identity.Agent {
		node := &nusav1.RegisteredNode{}
		version, err := read(ctx, store, nodePrefix+id.Name, node)
		if err == nil && version > 0 {
			out.Node, err = nodeOf(node)
		}
		if err != nil {
			return nil, err
		}
	}
	bans := &nusav1.BanList{}
	if _, err := read(ctx, store, bansKey, bans); err != nil {
		return nil, err
	}
	out.Banned = bannedBy(bans, id)
	return out, nil
}
