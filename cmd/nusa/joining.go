package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sync/errgroup"

	"github.com/nusa-scheduler/nusa/agent"
	"github.com/nusa-scheduler/nusa/global"
	"github.com/nusa-scheduler/nusa/internal/serve"
	"github.com/nusa-scheduler/nusa/regional"
	"github.com/nusa-scheduler/nusa/security/identity"
	"github.com/nusa-scheduler/nusa/security/join"
	"github.com/nusa-scheduler/nusa/security/member"
	"github.com/nusa-scheduler/nusa/security/trust"
)

const (
	// identityFolder and operatorFolder are folders of the data directory.
	identityFolder, operatorFolder = serve.IdentityDir, "operator"
	// tokenVariable is the environment variable that may have a join token.
	tokenVariable = "NUSA_JOIN_TOKEN"
	// maxTokenFile bounds what is read of a file with a token.
	maxTokenFile = 4 << 10
	// leastCertLife is the least value of --cert-ttl.
	leastCertLife = 10 * time.Second
)

// addJoinFlags adds the flags of a role that joins with a token.
func (r *role) addJoinFlags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&r.tokenFile, "join-token-file", "", "file with a join token, - for standard input; or give NUSA_JOIN_TOKEN; only the first start needs a token")
}

// addAgentJoinFlags adds the flags of an agent, which may join without a token.
func (r *role) addAgentJoinFlags(cmd *cobra.Command) {
	r.addJoinFlags(cmd)
	cmd.Flags().String(rootFlag, "", "hash of the root, to join without a token: see nusa region join-policy")
}

// rootFlag is the flag of an agent that joins without a token.
const rootFlag = "root-hash"

// tokenGiven reports whether the operator has given a join token.
func (r *role) tokenGiven() bool { return r.tokenFile != "" || os.Getenv(tokenVariable) != "" }

// joins reports whether a role has an identity in its data directory, or gets one at its start. A
// global server gets one unless --insecure says otherwise.
func joins(flags *pflag.FlagSet) bool {
	if flags.Lookup("secure") != nil {
		return flags.Lookup("insecure").Value.String() != "true"
	}
	if flags.Lookup("join-token-file").Value.String() != "" || os.Getenv(tokenVariable) != "" {
		return true
	}
	if f := flags.Lookup(rootFlag); f != nil && f.Value.String() != "" {
		return true
	}
	dir := flags.Lookup("data-dir").Value.String()
	return dir != "" && member.Exists(filepath.Join(dir, identityFolder))
}

// token reads the join token. The environment variable is removed, so that programs which this
// one starts do not get it.
func (r *role) token(stdin io.Reader) (join.Token, error) {
	text := os.Getenv(tokenVariable)
	if err := os.Unsetenv(tokenVariable); err != nil {
		return join.Token{}, err
	}
	from := tokenVariable
	if r.tokenFile != "" {
		from = "--join-token-file"
		in := stdin
		if r.tokenFile != "-" {
			f, err := os.Open(r.tokenFile)
			if err != nil {
				return join.Token{}, fmt.Errorf("%s: %w", from, err)
			}
			defer f.Close()
			if info, err := f.Stat(); err != nil || info.Mode().IsRegular() && info.Mode().Perm()&0o077 != 0 {
				return join.Token{}, cmp.Or(err, fmt.Errorf("%s: %s can be read by other users than its owner: run chmod 600 %s", from, f.Name(), f.Name()))
			}
			in = f
		}
		read, err := io.ReadAll(io.LimitReader(in, maxTokenFile))
		if err != nil {
			return join.Token{}, fmt.Errorf("%s: %w", from, err)
		}
		text = string(read)
	}
	if text == "" {
		return join.Token{}, nil
	}
	t, err := join.Parse(text)
	if err != nil {
		return join.Token{}, fmt.Errorf("%s: %w", from, err)
	}
	return t, nil
}

// idle waits for the end of a context, where nothing renews an identity.
func idle(ctx context.Context) error { <-ctx.Done(); return nil }

// joined returns the identity of a role, and a function that renews it until a context ends. With
// --identity-socket it is that of the Workload API, and with --identity it is that folder. Otherwise it is in the data directory: the role joins if it has
// none and the operator has given a token. Without both there is no identity.
func (r *role) joined(cmd *cobra.Command, c member.Config, orders *member.Orders) (source *trust.Source, keep func(context.Context) error, err error) {
	if r.identitySocket != "" {
		return r.followSocket(cmd.Context(), c.ID)
	}
	c.Dir, c.Log = filepath.Join(r.dataDir, identityFolder), r.logger
	if r.identity != "" && r.tokenGiven() {
		return nil, nil, fmt.Errorf("--identity (or NUSA_IDENTITY) is %s, and a join token is given: give one of them", r.identity)
	}
	c.Root, err = r.root(cmd.Flags())
	if err != nil {
		return nil, nil, err
	}
	if r.identity != "" || !r.tokenGiven() && c.Root.IsZero() && !member.Exists(c.Dir) {
		if _, err := os.Stat(c.Dir); err == nil && r.identity == "" && r.dataDir != "" {
			return nil, nil, fmt.Errorf("%s has no certificate (%s): restore the file, or remove the folder and join with a token", c.Dir, trust.CertFile)
		}
		source, err = r.source()
		return source, idle, err
	}
	if len(c.Servers) == 0 && !member.Exists(c.Dir) {
		return nil, nil, errors.New("a token needs servers that it can be shown to: give a regional server --global, and an agent --servers")
	}
	c.Token, c.TokenGiven = func() (join.Token, error) { return r.token(cmd.InOrStdin()) }, r.tokenGiven()
	if err := member.Ensure(cmd.Context(), c); err != nil {
		return nil, nil, err
	}
	r.identity = c.Dir
	source, err = r.source()
	if err != nil {
		return nil, nil, err
	}
	renewer := &member.Renewer{Source: source, Orders: orders, Ask: c.ID.Kind == identity.Server, Renew: c.Renew(), Log: r.logger}
	return source, renewer.Run, nil
}

// root returns the hash of the root for a role that may join without a token.
func (r *role) root(flags *pflag.FlagSet) (join.Root, error) {
	f := flags.Lookup(rootFlag)
	if f == nil || f.Value.String() == "" {
		return join.Root{}, nil
	}
	out, err := join.ParseRoot(f.Value.String())
	if err != nil {
		err = fmt.Errorf("--%s: %w", rootFlag, err)
	}
	return out, err
}

// joinRegional sets the identity of a regional server, and the lives of the certificates that
// the server issues. It returns the function that renews the identity.
func (r *role) joinRegional(cmd *cobra.Command, cfg *regional.Config, life time.Duration) (keep func(context.Context) error, err error) {
	cfg.Lives, err = certLife(identity.Agent, life)
	if err != nil {
		return nil, err
	}
	id := identity.ID{Kind: identity.Server, Region: cfg.Region.GetName(), Name: cfg.Name}
	cfg.Orders = &member.Orders{}
	cfg.Identity, keep, err = r.joined(cmd, member.Config{ID: id, Servers: cfg.Global, TakesKeys: cfg.GossipKeyFile == ""}, cfg.Orders)
	if err != nil {
		return nil, err
	}
	// The federation gives keys to servers that join with a token.
	given := filepath.Join(r.identity, member.GossipKeysFile)
	if _, statErr := os.Stat(given); r.identity != "" && cfg.GossipKeyFile == "" && statErr == nil {
		cfg.GossipKeyFile, cfg.GossipKeysGiven = given, true
	}
	return keep, checkGossip(cfg.GossipAddr, cfg.GossipKeyFile, r.insecure)
}

// joinAgent sets the identity of an agent, and its pool if the operator of the agent has chosen
// none. It returns the function that renews the identity.
func (r *role) joinAgent(cmd *cobra.Command, cfg *agent.Config) (keep func(context.Context) error, err error) {
	pool := ""
	if f := cmd.Flags().Lookup("pool"); f.Changed {
		pool = f.Value.String()
	}
	id := identity.ID{Kind: identity.Agent, Region: cfg.Region, Name: cfg.Name}
	cfg.Orders = &member.Orders{}
	cfg.Identity, keep, err = r.joined(cmd, member.Config{ID: id, Servers: cfg.Servers, Pool: pool}, cfg.Orders)
	if err != nil {
		return nil, err
	}
	if given := member.Pool(r.identity); given != "" && pool == "" {
		cfg.Pool = given
	}
	return keep, nil
}

// with runs a role and keeps its identity, until the role ends.
func with(ctx context.Context, keep, run func(context.Context) error) error {
	g, ctx := errgroup.WithContext(ctx)
	ctx, stop := context.WithCancel(ctx)
	g.Go(func() error { return keep(ctx) })
	g.Go(func() error {
		defer stop()
		return run(ctx)
	})
	return g.Wait()
}

// certLife returns the lives of certificates for --cert-ttl.
func certLife(kind identity.Kind, life time.Duration) (map[identity.Kind]time.Duration, error) {
	switch {
	case life == 0:
		return nil, nil
	case life < leastCertLife:
		return nil, fmt.Errorf("--cert-ttl: %s is shorter than %s", life, leastCertLife)
	}
	return map[identity.Kind]time.Duration{kind: life}, nil
}

// secureFlags are the flags of a global server that issues identities.
type secureFlags struct {
	on            bool
	federation    string
	caCert, caKey string
	certLife      time.Duration
}

func (s *secureFlags) add(cmd *cobra.Command) {
	f := cmd.Flags()
	f.BoolVar(&s.on, "secure", false, "issue identities, also in a federation that began without (default: in a new federation only)")
	f.StringVar(&s.federation, "federation", "", "name of a new federation, a DNS name in lower case (default: nusa- and a part of a hash)")
	f.StringVar(&s.caCert, "ca-cert", "", "root certificate (default: the store has the root, which the first server makes)")
	f.StringVar(&s.caKey, "ca-key", "", "key of --ca-cert; it is not stored")
	f.DurationVar(&s.certLife, "cert-ttl", 0, "life of the certificates of servers that this server issues (default 72h)")
}

// config returns the configuration for the flags, and nil if the server issues no identities.
func (s *secureFlags) config(r *role, flags *pflag.FlagSet) (*global.Secure, error) {
	dir := filepath.Join(r.dataDir, identityFolder)
	asked, joined := s.on || s.caCert != "" || s.caKey != "", member.Exists(dir)
	switch {
	case r.identitySocket != "" && joined:
		return nil, fmt.Errorf("--%s is given, and the federation has issued %s: leave --%[1]s (or NUSA_IDENTITY_SOCKET) out", socketFlag, dir)
	case r.identity != "" && asked:
		return nil, errors.New("--identity and --secure (or --ca-cert): give one of them")
	case r.identity != "" && joined:
		return nil, fmt.Errorf("--identity is %s, and the federation has issued %s: leave --identity (or NUSA_IDENTITY) out", r.identity, dir)
	case r.insecure && asked:
		return nil, errors.New("--insecure and --secure (or --ca-cert): give one of them")
	case r.insecure && joined:
		return nil, fmt.Errorf("--insecure: %s has an identity, so the federation has identities, and would refuse a server without: leave --insecure out", dir)
	case r.identity != "" || r.identitySocket != "" || r.insecure:
		return nil, nil
	case (s.caCert == "") != (s.caKey == ""):
		return nil, errors.New("--ca-cert and --ca-key: give both or none")
	}
	if err := s.severalMembers(r, flags); err != nil {
		return nil, err
	}
	lives, err := certLife(identity.Server, s.certLife)
	if err != nil {
		return nil, err
	}
	if lives != nil {
		lives[identity.Global] = s.certLife
	}
	return &global.Secure{
		Dir: dir, OperatorDir: filepath.Join(r.dataDir, operatorFolder), Federation: s.federation, CACert: s.caCert, CAKey: s.caKey, Lives: lives,
		IfNew: !asked && !joined, Exposed: exposed(openListeners(flags, false)),
	}, nil
}

// severalMembers refuses a new embedded etcd member among several, if this server could get its
// identity only from the store: the ports of the members are open before the store is.
func (s *secureFlags) severalMembers(r *role, flags *pflag.FlagSet) error {
	members, err := flags.GetStringSlice("etcd-initial-cluster")
	if err != nil || len(members) < 2 || s.caCert != "" {
		return err
	}
	if _, err := os.Stat(filepath.Join(r.dataDir, "etcd", "member")); err == nil {
		return nil
	}
	return errors.New("--etcd-initial-cluster: several embedded members need identities before the store exists: " +
		"give all servers the same --ca-cert and --ca-key (`nusa ca init` makes them), or each an --identity; --insecure runs them without encryption")
}
