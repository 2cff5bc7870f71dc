package enroll

import (
	"context"
	"crypto"
	"crypto/x509"
	"errors"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/security/audit"
	"github.com/nusa-scheduler/nusa/security/identity"
	"github.com/nusa-scheduler/nusa/security/join"
	"github.com/nusa-scheduler/nusa/security/pki"
	"github.com/nusa-scheduler/nusa/security/recorder"
)

// identityAPI is the service Identity.
type identityAPI struct {
	nusav1.UnimplementedIdentityServer
	s *Server
}

// Join implements nusav1.IdentityServer.
func (a *identityAPI) Join(ctx context.Context, req *nusav1.JoinRequest) (*nusav1.JoinResponse, error) {
	return Bounded(ctx, a.s, "join", func() (*nusav1.JoinResponse, error) { return a.s.join(ctx, req) })
}

// Renew implements nusav1.IdentityServer.
func (a *identityAPI) Renew(ctx context.Context, req *nusav1.RenewRequest) (*nusav1.JoinResponse, error) {
	return Bounded(ctx, a.s, "renewal", func() (*nusav1.JoinResponse, error) { return a.s.renew(ctx, req) })
}

// Bounded answers a request of a caller without a certificate, unless too many requests of the same
// address have failed.
func Bounded[T any](ctx context.Context, s *Server, what string, do func() (*T, error)) (*T, error) {
	from, now := s.address(ctx), s.Now()
	if !s.failures.allow(from, now) {
		return nil, status.Error(codes.ResourceExhausted, "too many requests of this address were refused: wait some seconds")
	}
	out, err := do()
	switch status.Code(err) {
	case codes.PermissionDenied, codes.InvalidArgument, codes.Unauthenticated:
		s.failures.add(from, now)
		s.Log.Warn("a "+what+" is refused", "from", from, "reason", status.Convert(err).Message())
	}
	return out, err
}

// refusal returns the status of a refused request.
func refusal(err error) error { return status.Error(codes.PermissionDenied, err.Error()) }

func (s *Server) join(ctx context.Context, req *nusav1.JoinRequest) (*nusav1.JoinResponse, error) {
	store, issuer, err := s.ready()
	if err != nil {
		return nil, err
	}
	id, key, err := pki.ParseRequest(req.GetRequest())
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	der, err := x509.MarshalPKIXPublicKey(key)
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	ask := &join.Request{ID: id, Key: join.HashOf(der), Pool: req.GetPool(), Address: s.address(ctx)}
	if req.GetToken() != "" {
		ask.Token, err = join.Parse(req.GetToken())
		if err != nil {
			return nil, refusal(err)
		}
	}
	if req.GetNameOfToken() && id.Kind == identity.Operator {
		id.Name, err = operatorOf(ctx, store, ask.Token, id.Name)
		if err != nil {
			return nil, err
		}
		ask.ID = id
	}
	authority, err := authorityKey(id, req.GetAuthorityRequest())
	if err != nil {
		return nil, err
	}
	var out *nusav1.JoinResponse
	err = retry(func() error {
		known, err := s.load(ctx, store, id, ask.Key, ask.Token.ID())
		if err != nil {
			return err
		}
		grant, refused := join.Decide(&known.Snapshot, ask, s.Now())
		if refused != nil {
			return refusal(refused)
		}
		chain, err := issuer.Issue(id, key)
		if err != nil {
			return refusal(err)
		}
		puts := map[string]proto.Message{known.memberKey: memberOf(id, ask.Key, chain[0], ask.Token.ID(), fixedPool(known, &grant))}
		if grant.Token != nil {
			puts[tokenPrefix+grant.Token.ID] = recordOf(grant.Token)
		}
		check, ring, err := firstRing(ctx, store, id, req.GetTakesKeys(), s.Now())
		if err != nil {
			return err
		}
		if ring != nil {
			puts[check.Key], known.checks = ring, append(known.checks, check)
		}
		if err := s.write(ctx, store, known, puts, entry("join", id, "with token "+ask.Token.ID())); err != nil {
			return err
		}
		out, err = s.response(issuer, id, chain, authority)
		if err != nil {
			return err
		}
		out.Pool = grant.Pool
		return ringsOf(ctx, store, id, out)
	})
	if err != nil {
		return nil, err
	}
	s.Log.Info("a member has joined", "member", id.String(), "from", ask.Address, "token", ask.Token.ID())
	return out, nil
}

// operatorOf returns the name of the operator that a token is for. Without such a token it returns
// name, and package join refuses the request.
func operatorOf(ctx context.Context, store Store, token join.Token, name string) (string, error) {
	record := &nusav1.TokenRecord{}
	version, err := read(ctx, store, tokenPrefix+token.ID(), record)
	if err != nil || version == 0 {
		return name, err
	}
	if t := tokenOf(record); t.Is(token) && t.Kind == identity.Operator {
		name = t.Name
	}
	return name, nil
}

// write writes the records of a join or a renewal. It removes records that nobody needs any more.
func (s *Server) write(ctx context.Context, store Store, known *snapshot, puts map[string]proto.Message, e *audit.Entry) error {
	c, err := changeOf(known.checks, puts, e)
	if err == nil {
		err = s.sweep(ctx, store, known.Grace, &c)
	}
	if err != nil {
		return err
	}
	return store.Change(ctx, c)
}

// fixedPool returns the pool of a new agent if its token or its registration names one. The agent
// must stay in that pool.
func fixedPool(known *snapshot, grant *join.Grant) string {
	if grant.Token != nil && grant.Token.Pool != "" || grant.Node != nil && grant.Node.Pool != "" {
		return grant.Pool
	}
	return ""
}

// entry returns the entry of the audit trail for a member. A member who joins has no certificate
// yet, so the name of the entry says who that is.
func entry(verb string, id identity.ID, why string) *audit.Entry {
	return &audit.Entry{Verb: verb, Kind: "member", Name: recorder.Name(id), Region: id.Region, Reason: why}
}

// renewal returns the entry for a renewal. The renewals of agents have none: there are too many, and
// they give an agent nothing new.
func renewal(id identity.ID) *audit.Entry {
	if id.Kind == identity.Agent {
		return nil
	}
	return entry("renew", id, "")
}

func memberOf(id identity.ID, key join.Hash, cert *x509.Certificate, token, pool string) *nusav1.Member {
	return &nusav1.Member{Role: roles[id.Kind], Region: id.Region, Name: id.Name, Key: key[:], NotAfter: timestamppb.New(cert.NotAfter), Token: token, Pool: pool}
}

// authorityKey returns the key of a request for a region's authority, which only a server of that
// region may send. It returns nil without a request.
func authorityKey(id identity.ID, request []byte) (crypto.PublicKey, error) {
	if len(request) == 0 {
		return nil, nil
	}
	region, key, err := pki.ParseRequest(request)
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	if id.Kind != identity.Server || region != authorityOf(id) {
		return nil, status.Errorf(codes.PermissionDenied, "%s may not be %s", id.Describe(), region.Describe())
	}
	return key, nil
}

// authorityOf returns the authority of a member's region.
func authorityOf(id identity.ID) identity.ID {
	return identity.ID{Federation: id.Federation, Kind: identity.Region, Region: id.Region}
}

// response returns a certificate, and that of the region's authority if authority is its key.
func (s *Server) response(issuer *Issuer, id identity.ID, chain []*x509.Certificate, authority crypto.PublicKey) (*nusav1.JoinResponse, error) {
	out := &nusav1.JoinResponse{Chain: pki.EncodeCertificates(chain...), Roots: pki.EncodeCertificates(s.Source.Roots()...)}
	if authority == nil {
		return out, nil
	}
	cert, err := issuer.Issue(authorityOf(id), authority)
	if err != nil {
		return nil, refusal(err)
	}
	out.Authority = pki.EncodeCertificates(cert[0])
	return out, nil
}

// maxChain bounds the certificates of a renewal.
const maxChain = 4

// proven returns the identity that the chain of a renewal proves. An expired certificate is
// verified at the time of its end. The request for the next certificate has the same key, so
// its sender has the key.
func (s *Server) proven(req *nusav1.RenewRequest) (identity.ID, *x509.Certificate, error) {
	chain, err := pki.ParseCertificates(req.GetChain(), maxChain)
	if err != nil {
		return identity.ID{}, nil, status.Error(codes.InvalidArgument, err.Error())
	}
	roots, err := s.roots()
	if err != nil {
		return identity.ID{}, nil, err
	}
	now := s.Now()
	if now.After(chain[0].NotAfter) {
		now = chain[0].NotAfter
	}
	id, err := pki.Verify(chain, roots, now)
	if err != nil {
		return identity.ID{}, nil, refusal(err)
	}
	asked, key, err := pki.ParseRequest(req.GetRequest())
	if err != nil {
		return identity.ID{}, nil, status.Error(codes.InvalidArgument, err.Error())
	}
	der, err := x509.MarshalPKIXPublicKey(key)
	if err != nil {
		return identity.ID{}, nil, status.Error(codes.InvalidArgument, err.Error())
	}
	if asked != id || join.HashOf(der) != hashOf(chain[0]) {
		return identity.ID{}, nil, refusal(errors.New("the request for a renewal has another name or key than the certificate: join again with a token"))
	}
	return id, chain[0], nil
}

func (s *Server) renew(ctx context.Context, req *nusav1.RenewRequest) (*nusav1.JoinResponse, error) {
	store, issuer, err := s.ready()
	if err != nil {
		return nil, err
	}
	id, cert, err := s.proven(req)
	if err != nil {
		return nil, err
	}
	authority, err := authorityKey(id, req.GetAuthorityRequest())
	if err != nil {
		return nil, err
	}
	if err := checkState(req.GetHas()); err != nil {
		return nil, err
	}
	ask := &join.Renewal{ID: id, Key: hashOf(cert), NotBefore: cert.NotBefore, NotAfter: cert.NotAfter}
	var out *nusav1.JoinResponse
	err = retry(func() error {
		known, err := s.load(ctx, store, id, ask.Key, "")
		if err != nil {
			return err
		}
		if refused := join.Renew(&known.Snapshot, ask, s.Now()); refused != nil {
			return refusal(refused)
		}
		chain, err := issuer.Issue(id, cert.PublicKey)
		if err != nil {
			return refusal(err)
		}
		record := memberOf(id, ask.Key, chain[0], known.joined, known.pool)
		if req.GetHas() != nil {
			record.Has, record.ReportedAt = req.GetHas(), timestamppb.New(s.Now())
		}
		if err := s.write(ctx, store, known, map[string]proto.Message{known.memberKey: record}, renewal(id)); err != nil {
			return err
		}
		out, err = s.response(issuer, id, chain, authority)
		if err != nil {
			return err
		}
		return ringsOf(ctx, store, id, out)
	})
	if err != nil {
		return nil, err
	}
	s.Log.Info("a certificate is renewed", "member", id.String(), "was_until", cert.NotAfter.UTC().Format(time.RFC3339))
	return out, nil
}
