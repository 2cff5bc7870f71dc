package enroll

import (
	"context"
	"crypto"
	"crypto/rand"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
	"github.com/nusa-scheduler/nusa/security/audit"
	"github.com/nusa-scheduler/nusa/security/pki"
	"github.com/nusa-scheduler/nusa/security/rotation"
)

// AuthorityKey is the key of the record of the federation's root, a nusav1.AuthorityRecord.
const AuthorityKey = "identity/ca"

// Bounds of the time within which members renew after a step.
const (
	defaultSpread, ringSpread = 5 * time.Minute, time.Minute
	maxSpread                 = 24 * time.Hour
)

// Root is the root of a federation. During a change of the root there are two.
type Root struct {
	State rotation.Authority
	// Authority issues new certificates. Its key is nil if this server does not have that key.
	Authority *pki.Authority
	// Other is the other trusted root, or nil. otherKey may be nil.
	Other    *x509.Certificate
	otherKey crypto.Signer
	// cross is the certificate by which the earlier root vouches for the later one, or nil.
	cross  *x509.Certificate
	Since  time.Time
	Spread time.Duration
	// stored: the store has the keys. version is that of the record.
	stored  bool
	version uint64
}

// ErrOtherRoot means that the store has another root than the files of this server.
var ErrOtherRoot = errors.New("the federation has another root than that of --ca-cert")

// ErrNoRootKey means that the store does not have the root's key.
var ErrNoRootKey = errors.New("the store does not have its key: give --ca-cert and --ca-key")

// ReadRoot reads the root of the federation. given are the roots in the files of this server. The
// result is nil if the store has none.
func ReadRoot(ctx context.Context, store Store, given []*pki.Authority) (*Root, error) {
	value := &nusav1.AuthorityRecord{}
	version, err := read(ctx, store, AuthorityKey, value)
	if err != nil || version == 0 {
		return nil, err
	}
	out, err := parseRoot(value, given)
	if err != nil {
		return nil, fmt.Errorf("stored record: %w", err)
	}
	out.version = version
	return out, nil
}

func parseRoot(r *nusav1.AuthorityRecord, given []*pki.Authority) (*Root, error) {
	out := &Root{
		State: rotation.Authority{Version: r.GetVersion(), Phase: rotation.Phase(r.GetPhase())},
		Since: r.GetSince().AsTime(), Spread: r.GetSpread().AsDuration(), stored: len(r.GetKey()) > 0,
	}
	cert, key, err := rootOf(r.GetCertificate(), r.GetKey(), given)
	if err != nil {
		return nil, err
	}
	out.Authority = &pki.Authority{Cert: cert, Key: key}
	out.State.Issuer = pki.Fingerprint(cert)
	owner, err := pki.Owner(r.GetCertificate())
	if err != nil {
		return nil, err
	}
	out.Authority.ID = owner
	if len(r.GetOther()) > 0 {
		out.Other, out.otherKey, err = rootOf(r.GetOther(), r.GetOtherKey(), given)
		if err != nil {
			return nil, err
		}
		out.State.Other = pki.Fingerprint(out.Other)
	}
	if len(r.GetCross()) > 0 {
		certs, err := pki.ParseCertificates(r.GetCross(), 1)
		if err != nil {
			return nil, err
		}
		out.cross = certs[0]
	}
	return out, nil
}

// rootOf returns a root of the record, and its key if the record or a file of this server has it.
func rootOf(cert, key []byte, given []*pki.Authority) (*x509.Certificate, crypto.Signer, error) {
	certs, err := pki.ParseCertificates(cert, 1)
	if err != nil {
		return nil, nil, err
	}
	for _, g := range given {
		if g.Cert.Equal(certs[0]) {
			return certs[0], g.Key, nil
		}
	}
	if len(key) == 0 {
		return certs[0], nil, nil
	}
	signer, err := pki.ParseKey(key)
	if err != nil {
		return nil, nil, err
	}
	_, err = pki.NewAuthority(certs[0], signer)
	return certs[0], signer, err
}

// GivenRoot returns the root of a server that does not know yet what the store has. given are the
// roots in its files, and not empty.
func GivenRoot(given []*pki.Authority) *Root {
	out := &Root{Authority: given[0], State: rotation.Authority{Issuer: pki.Fingerprint(given[0].Cert)}}
	for _, g := range given[1:] {
		out.Other, out.State.Other = g.Cert, pki.Fingerprint(g.Cert)
	}
	return out
}

// Trusts reports whether a root with this name is trusted.
func (r *Root) Trusts(name string) bool { return slices.Contains(r.State.Roots(), name) }

// Check returns an error if a server that starts cannot issue with the root. given are the roots in
// its files.
func (r *Root) Check(given []*pki.Authority) error {
	ours := len(given) == 0
	for _, g := range given {
		ours = ours || g.Cert.Equal(r.Authority.Cert)
	}
	switch {
	case !ours:
		return ErrOtherRoot
	case r.Authority.Key == nil:
		return ErrNoRootKey
	}
	return nil
}

// Certificates returns the trusted roots. The first one issues.
func (r *Root) Certificates() []*x509.Certificate {
	if r.Other == nil {
		return []*x509.Certificate{r.Authority.Cert}
	}
	return []*x509.Certificate{r.Authority.Cert, r.Other}
}

// Above returns the certificates that members send behind those of the root that issues.
func (r *Root) Above() []*x509.Certificate {
	if r.cross == nil || string(r.cross.RawSubjectPublicKeyInfo) != string(r.Authority.Cert.RawSubjectPublicKeyInfo) {
		return nil
	}
	return []*x509.Certificate{r.cross}
}

// CreateRoot stores the first root of a federation. Without store the store does not get the key.
// It returns ErrChanged if the store has a root.
func CreateRoot(ctx context.Context, store Store, root *pki.Authority, keep bool) error {
	record := &nusav1.AuthorityRecord{Certificate: pki.EncodeCertificates(root.Cert)}
	var err error
	if keep {
		record.Key, err = pki.EncodeKey(root.Key)
	}
	if err != nil {
		return err
	}
	p, err := put(AuthorityKey, record)
	if err != nil {
		return err
	}
	return store.Change(ctx, Change{Checks: []Check{{Key: AuthorityKey}}, Puts: []Put{p}})
}

// next returns the new root of the step trust: that of the request, that of the files, or a new one.
func (r *Root) next(req *nusav1.RotateAuthorityRequest, given []*pki.Authority, now time.Time) (*pki.Authority, error) {
	federation := r.Authority.ID.Federation
	switch {
	case len(req.GetCertificate()) > 0:
		certs, err := pki.ParseCertificates(req.GetCertificate(), 1)
		if err != nil {
			return nil, err
		}
		if err := pki.CheckRoot(certs[0], federation); err != nil {
			return nil, err
		}
		if len(req.GetKey()) == 0 {
			if r.stored {
				return nil, errors.New("the root needs its key, because the store has the key of the present root")
			}
			return &pki.Authority{ID: r.Authority.ID, Cert: certs[0]}, nil
		}
		key, err := pki.ParseKey(req.GetKey())
		if err != nil {
			return nil, err
		}
		return pki.NewAuthority(certs[0], key)
	case r.stored:
		return r.Authority.NextRoot(pki.Env{Now: now, Rand: rand.Reader})
	}
	for _, g := range given {
		if !g.Cert.Equal(r.Authority.Cert) {
			return g, pki.CheckRoot(g.Cert, federation)
		}
	}
	return nil, errors.New("the store does not have the key of the root: give the certificate of the new root, and append both it and its key to the files of --ca-cert and --ca-key of each global server")
}

// Rotate does a step of the change to another root, and stores it. given are the roots in the
// files of this server.
func (r *Root) Rotate(ctx context.Context, store Store, req *nusav1.RotateAuthorityRequest, given []*pki.Authority, waiting *rotation.Waiting, now time.Time) error {
	spread := defaultSpread
	if req.GetSpread() != nil {
		spread = req.GetSpread().AsDuration()
	}
	if spread < 0 || spread > maxSpread {
		return status.Errorf(codes.InvalidArgument, "spread: %s is not 0..%s", spread, maxSpread)
	}
	next, id := (*pki.Authority)(nil), ""
	if req.GetPhase() == rotation.ToTrust && r.State.Phase == rotation.Steady {
		var err error
		next, err = r.next(req, given, now)
		if err != nil {
			return status.Error(codes.InvalidArgument, err.Error())
		}
		id = pki.Fingerprint(next.Cert)
	}
	after, err := r.State.Step(req.GetPhase(), id, waiting, req.GetForce())
	if err != nil {
		return status.Error(codes.FailedPrecondition, err.Error())
	}
	record, err := r.record(after, next, now)
	if err != nil {
		return err
	}
	record.Spread = durationpb.New(spread)
	p, err := put(AuthorityKey, record)
	if err != nil {
		return err
	}
	why := fmt.Sprintf("%s, root %s issues", req.GetPhase(), after.Issuer)
	if req.GetForce() {
		why += ", by force"
	}
	err = store.Change(ctx, Change{Checks: []Check{{AuthorityKey, r.version}}, Puts: []Put{p}, Audit: &audit.Entry{Verb: "rotate", Kind: "key", Name: "root", Reason: why}})
	if errors.Is(err, ErrChanged) {
		return status.Error(codes.Aborted, "another call has changed the root: look at the status")
	}
	return err
}

// record returns the record for the roots after a step. next is the new root of the step trust.
func (r *Root) record(after rotation.Authority, next *pki.Authority, now time.Time) (*nusav1.AuthorityRecord, error) {
	out := &nusav1.AuthorityRecord{Version: after.Version, Phase: string(after.Phase), Since: timestamppb.New(now)}
	type root struct {
		cert *x509.Certificate
		key  crypto.Signer
	}
	all := map[string]root{r.State.Issuer: {r.Authority.Cert, r.Authority.Key}}
	if r.Other != nil {
		all[r.State.Other] = root{r.Other, r.otherKey}
	}
	cross := r.cross
	if next != nil {
		all[pki.Fingerprint(next.Cert)] = root{next.Cert, next.Key}
		if r.Authority.Key == nil {
			return nil, status.Error(codes.FailedPrecondition, ErrNoRootKey.Error())
		}
		var err error
		cross, err = r.Authority.Vouch(next.Cert, pki.Env{Now: now, Rand: rand.Reader})
		if err != nil {
			return nil, err
		}
	}
	if cross != nil {
		out.Cross = pki.EncodeCertificates(cross)
	}
	issuer := all[after.Issuer]
	if issuer.key == nil {
		return nil, status.Errorf(codes.FailedPrecondition, "this server does not have the key of root %s: append the root and its key to the files of --ca-cert and --ca-key", after.Issuer)
	}
	keyOf := func(one root) ([]byte, error) {
		if !r.stored || one.key == nil {
			return nil, nil
		}
		return pki.EncodeKey(one.key)
	}
	var err error
	out.Certificate = pki.EncodeCertificates(issuer.cert)
	out.Key, err = keyOf(issuer)
	if err == nil && after.Other != "" {
		out.Other = pki.EncodeCertificates(all[after.Other].cert)
		out.OtherKey, err = keyOf(all[after.Other])
	}
	return out, err
}

// Goal returns what the members of the federation should have, and nil if the root was never
// changed.
func (r *Root) Goal() *nusav1.KeyGoal {
	if r == nil || r.State.Version == 0 {
		return nil
	}
	goal := r.State.Goal()
	return &nusav1.KeyGoal{Want: StateToProto(&goal), Spread: durationpb.New(r.Spread), Version: r.State.Version}
}

// Status describes the roots, without who has converged.
func (r *Root) Status() *nusav1.AuthorityStatus {
	out := &nusav1.AuthorityStatus{Phase: r.State.Name(), Version: r.State.Version, Spread: durationpb.New(r.Spread)}
	if r.State.Version > 0 {
		out.Since = timestamppb.New(r.Since)
	}
	for i, c := range r.Certificates() {
		out.Roots = append(out.Roots, &nusav1.RootInfo{Id: pki.Fingerprint(c), NotBefore: timestamppb.New(c.NotBefore), NotAfter: timestamppb.New(c.NotAfter), Issues: i == 0})
	}
	return out
}
