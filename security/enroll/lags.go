package enroll

import (
	"cmp"
	"context"
	"crypto/x509"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/security/identity"
	"github.com/nusa-scheduler/nusa/security/pki"
	"github.com/nusa-scheduler/nusa/security/rotation"
	"github.com/nusa-scheduler/nusa/security/trust"
)

// maxLags bounds the members of a region that an answer names.
const maxLags = 200

// maxStateItems and maxStateText bound what a member reports.
const maxStateItems, maxStateText = 16, 64

// StateToProto returns the message for a state.
func StateToProto(s *rotation.State) *nusav1.KeyState {
	return &nusav1.KeyState{Roots: s.Roots, Issuer: s.Issuer, Authority: s.Authority, Gossip: s.Gossip, Probe: s.Probe, EtcdRoots: s.EtcdRoots}
}

// StateOf returns the state of a message.
func StateOf(m *nusav1.KeyState) *rotation.State {
	return &rotation.State{Roots: m.GetRoots(), Issuer: m.GetIssuer(), Authority: m.GetAuthority(), Gossip: m.GetGossip(), Probe: m.GetProbe(), EtcdRoots: m.GetEtcdRoots()}
}

// checkState returns an error if a member reports more than a member can have.
func checkState(m *nusav1.KeyState) error {
	lists := [][]string{m.GetRoots(), m.GetGossip(), m.GetProbe(), m.GetEtcdRoots(), {m.GetIssuer(), m.GetAuthority()}}
	for _, list := range lists {
		if len(list) > maxStateItems || slices.ContainsFunc(list, func(s string) bool { return len(s) > maxStateText }) {
			return status.Error(codes.InvalidArgument, "what the member says that it has is too long")
		}
	}
	return nil
}

// Has returns what a member has: the roots and certificates of its folder.
func Has(source *trust.Source) (*rotation.State, error) {
	chain, err := source.Chain()
	if err != nil {
		return nil, err
	}
	roots, err := pki.NewRoots(source.Roots()...)
	if err != nil {
		return nil, err
	}
	out := &rotation.State{Roots: roots.Fingerprints(), Issuer: pki.IssuerOf(chain, roots)}
	if a, err := ReadAuthority(source.Dir()); err == nil {
		out.Authority = cmp.Or(pki.IssuerOf([]*x509.Certificate{a.Cert}, roots), "(unknown)")
	}
	return out, nil
}

// Lags are the members that have not converged.
type Lags struct {
	Converged, Waiting int
	// Lags has at most maxLags members.
	Lags []*nusav1.KeyLag
}

// Add counts a member that lacks something. lacks is "" if it lacks nothing.
func (l *Lags) Add(lag *nusav1.KeyLag) {
	switch {
	case lag.GetLacks() == "":
		l.Converged++
		return
	case !lag.GetNote():
		l.Waiting++
	}
	if len(l.Lags) < maxLags {
		l.Lags = append(l.Lags, lag)
	}
}

// Merge adds the members of another part of the federation.
func (l *Lags) Merge(other *Lags) {
	l.Converged, l.Waiting = l.Converged+other.Converged, l.Waiting+other.Waiting
	l.Lags = append(l.Lags, other.Lags...)
}

// Hold returns what holds back the next step. silent are regions that did not answer.
func (l *Lags) Hold(silent []*nusav1.PartialError) *rotation.Waiting {
	out := &rotation.Waiting{Members: l.Waiting}
	for _, lag := range l.Lags {
		if !lag.GetNote() {
			out.Some = append(out.Some, fmt.Sprintf("%s (%s)", lag.GetMember(), lag.GetLacks()))
		}
	}
	for _, e := range silent {
		out.Silent = append(out.Silent, e.GetRegion())
	}
	return out
}

// Lagging returns who of a region, or of all regions, of the members that have joined, and of the names that are known by other
// means, does not have what it should. Members that cannot come back without a token do not count.
func Lagging(ctx context.Context, s *Server, kind identity.Kind, region string, want *rotation.State, known map[identity.ID]bool) (*Lags, error) {
	store, err := s.records()
	if err != nil {
		return nil, err
	}
	_, grace, _, _, err := policy(ctx, store)
	if err != nil {
		return nil, err
	}
	bans := &nusav1.BanList{}
	if _, err := read(ctx, store, bansKey, bans); err != nil {
		return nil, err
	}
	out, seen, now := &Lags{}, map[identity.ID]bool{}, s.Now()
	prefix := memberPrefix + roles[kind] + "/"
	if region != "" {
		prefix = memberKey(roles[kind], region, "")
	}
	err = store.List(ctx, prefix, func(_ string, value []byte, _ uint64) error {
		m := &nusav1.Member{}
		if err := proto.Unmarshal(value, m); err != nil {
			return err
		}
		id := identity.ID{Federation: s.Source.ID().Federation, Kind: kind, Region: m.GetRegion(), Name: m.GetName()}
		seen[id] = true
		if now.After(m.GetNotAfter().AsTime().Add(grace)) || bannedBy(bans, id) != "" {
			return nil
		}
		out.Add(&nusav1.KeyLag{Member: id.Describe(), Lacks: lacksOf(want, m, now), ReportedAt: m.GetReportedAt()})
		return nil
	})
	for id := range known {
		if !seen[id] {
			out.Add(&nusav1.KeyLag{Member: id.Describe(), Lacks: "has an identity that `nusa ca issue` made: replace its files"})
		}
	}
	slices.SortStableFunc(out.Lags, func(a, b *nusav1.KeyLag) int { return strings.Compare(a.GetMember(), b.GetMember()) })
	return out, err
}

func lacksOf(want *rotation.State, m *nusav1.Member, now time.Time) string {
	lacks := rotation.Lacks(want, StateOf(m.GetHas()), m.GetHas() != nil)
	if end := m.GetNotAfter().AsTime(); lacks != "" && now.After(end) {
		lacks += fmt.Sprintf("; its certificate ended at %s, so it is off", end.UTC().Format(time.RFC3339))
	}
	return lacks
}
