package cli

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/nusa-scheduler/nusa/client"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/term"
	"github.com/nusa-scheduler/nusa/job"
)

// DefaultAddr is the server that a client calls by default: a global server on this
// machine.
const DefaultAddr = "127.0.0.1:7600"

// DefaultTimeout is the default of --timeout.
const DefaultTimeout = 30 * time.Second

// Settings are the flags that the commands of one noun share.
type Settings struct {
	Addr      string
	Namespace string
	Region    string
	Output    string
	Timeout   time.Duration
	// Identity is the folder with the credentials of this client. It is empty if connections
	// are not encrypted.
	Identity string
	// RootsFile has the roots of the federation, for a client without a certificate.
	RootsFile string
	// Program is the name of this binary in hints.
	Program string
	// Master is the region whose master is called. It is "" if the user gave an address.
	Master string
}

// Bind adds the flags to a noun, for all of its verbs. more are further values of --output.
func (s *Settings) Bind(cmd *cobra.Command, more ...string) {
	formats := append([]string{"table", "json", "yaml", "name"}, more...)
	f := cmd.PersistentFlags()
	f.StringVar(&s.Addr, "addr", envOr("NUSA_ADDR", DefaultAddr), fmt.Sprintf("server to call: HOST[:PORT], default port %d; or several: HOST,HOST; or unix:PATH (NUSA_ADDR)", client.DefaultPort))
	f.DurationVar(&s.Timeout, "timeout", DefaultTimeout, "how long to wait for a response")
	f.StringVar(&s.Identity, "identity", os.Getenv("NUSA_IDENTITY"), "folder with cert.pem, key.pem and roots.pem of this client (NUSA_IDENTITY; default: the profile of the server's address)")
	f.StringVar(&s.RootsFile, "roots", os.Getenv("NUSA_ROOTS"), "file with the roots.pem of the federation, for a client that has an access token and no certificate (NUSA_ROOTS)")
	f.StringVarP(&s.Output, "output", "o", "table", strings.Join(formats[:len(formats)-1], ", ")+" or "+formats[len(formats)-1])
	s.complete(cmd, formats)
	cmd.PersistentPreRunE = func(verb *cobra.Command, _ []string) error {
		if !slices.Contains(formats, s.Output) {
			return fmt.Errorf("--output: %q is not one of %s", s.Output, strings.Join(formats, ", "))
		}
		if s.Output == "name" {
			if err := checkNames(verb); err != nil {
				return err
			}
		}
		if s.Namespace != "" && !job.ValidName(s.Namespace) {
			return fmt.Errorf("--namespace: %q is not a name: 1 to 63 of a-z, 0-9 and -, starting with a letter", s.Namespace)
		}
		return CheckTimeout(s.Timeout)
	}
}

// BindNamespace adds --namespace to a noun.
func (s *Settings) BindNamespace(cmd *cobra.Command) {
	cmd.PersistentFlags().StringVarP(&s.Namespace, "namespace", "n", envOr("NUSA_NAMESPACE", ""), "namespace of jobs (NUSA_NAMESPACE); without it: "+job.DefaultNamespace+", and in lists all namespaces")
	_ = cmd.RegisterFlagCompletionFunc("namespace", func(c *cobra.Command, _ []string, begun string) ([]cobra.Completion, cobra.ShellCompDirective) {
		return s.names(c, nil, begun, "namespace NAME")
	}) // fails only without the flag
}

// BindRegion adds --region to one verb, because its meaning differs between verbs.
func (s *Settings) BindRegion(cmd *cobra.Command, usage string) {
	cmd.Flags().StringVar(&s.Region, "region", envOr("NUSA_REGION", ""), usage+" (NUSA_REGION)")
}

func envOr(key, otherwise string) string {
	if v := os.Getenv(key); v != "" {
		return v
	}
	return otherwise
}

// Run returns a function for cobra that connects to the server and calls f. It explains the
// error of f.
func (s *Settings) Run(f func(c *Session, args []string) error) func(*cobra.Command, []string) error {
	return s.run(func(*Session) {}, f)
}

// run returns the function for cobra. prepare changes the session before it connects.
func (s *Settings) run(prepare func(*Session), f func(c *Session, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		c := &Session{Settings: s, Cmd: cmd, Ctx: cmd.Context(), Out: cmd.OutOrStdout()}
		prepare(c)
		s.Program = Program(cmd)
		c.Terminal = term.IsTerminal(c.Out)
		c.Style = term.Palette{On: c.Terminal && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"}
		closeConn, err := c.Connect(s.Addr)
		if err != nil {
			return err
		}
		defer closeConn()
		defer renew(c)()
		return c.Explain(hint(c, f(c, args)))
	}
}
