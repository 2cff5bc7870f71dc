package main

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/cli"
	"github.com/nusa-scheduler/nusa/internal/config"
	"github.com/nusa-scheduler/nusa/internal/serve"
	"github.com/nusa-scheduler/nusa/security/trust"
)

// role holds the parts that the three role commands share: settings from flags, environment
// and file, and a logger to standard error.
type role struct {
	configFile, logLevel, logFormat, dataDir, bind, identity, identitySocket, tokenFile, socket string
	insecure                                                                                    bool
	logger                                                                                      *slog.Logger
}

// addFlags adds the shared flags. When RunE begins, every flag has its final value and was
// checked, and required flags are set.
func (r *role) addFlags(cmd *cobra.Command, required ...string) {
	f := cmd.Flags()
	f.StringVar(&r.configFile, "config", "", "YAML file of settings; keys are the flags' names (env NUSA_CONFIG)")
	f.StringVar(&r.logLevel, "log-level", "info", "debug, info, warn or error")
	f.StringVar(&r.logFormat, "log-format", "text", "text or json")
	f.StringVar(&r.dataDir, "data-dir", "", "directory of this role's state; each role needs its own (required)")
	f.StringVar(&r.bind, "bind", "", bindUsage)
	f.StringVar(&r.identity, "identity", "", "folder with cert.pem, key.pem and roots.pem, which encrypt connections (default: no encryption)")
	f.StringVar(&r.identitySocket, socketFlag, "", "SPIFFE Workload API that gives this role its identity, as in unix:///run/spire/agent.sock (default: none)")
	f.BoolVar(&r.insecure, "insecure", false, insecureUsage(cmd))
	if cmd.Name() != "agent" {
		f.StringVar(&r.socket, "socket", "", "Unix socket for root and this user, who may do everything (default: nusa.sock in --data-dir); - turns it off")
	}
	cmd.Args = noArguments
	cmd.PreRunE = func(cmd *cobra.Command, _ []string) error {
		if err := load(cmd.Flags(), r.configFile); err != nil {
			return err
		}
		if err := applyBind(cmd.Flags()); err != nil {
			return err
		}
		if err := checkFlags(cmd.Flags(), required...); err != nil {
			return err
		}
		if err := r.checkIdentitySocket(cmd.Flags()); err != nil {
			return err
		}
		if err := checkExposed(cmd.Flags(), r.insecure); err != nil {
			return err
		}
		var err error
		r.logger, err = serve.NewLogger(r.logLevel, r.logFormat, os.Stderr)
		if err != nil {
			return fmt.Errorf("--log-level, --log-format: %w", err)
		}
		if cmd.Name() == "agent" {
			return nil
		}
		return noCores()
	}
}

// insecureUsage describes --insecure of a role.
func insecureUsage(cmd *cobra.Command) string {
	if cmd.Name() == "global" {
		return "begin a federation without identities: who reaches a listener may run commands on every node"
	}
	return "let other machines reach listeners without encryption, and so run commands on every node"
}

// socketPath returns the path of the socket, and nothing for none. The default gives way if its path
// is too long for a socket.
func (r *role) socketPath() string {
	if r.socket == "-" {
		return ""
	}
	if r.socket != "" {
		return r.socket
	}
	path, err := filepath.Abs(filepath.Join(r.dataDir, "nusa.sock"))
	if err == nil {
		err = serve.CheckSocket(path)
	}
	if err != nil {
		r.logger.Warn("there is no socket for the administrator of this machine", "error", err)
		return ""
	}
	return path
}

// source returns the identity of --identity, and nil without the flag.
func (r *role) source() (*trust.Source, error) {
	if r.identity == "" {
		return nil, nil
	}
	s, err := trust.Open(trust.Options{Dir: r.identity, Logger: r.logger})
	if err != nil {
		return nil, fmt.Errorf("--identity: %w", err)
	}
	r.logger.Info("connections are encrypted", "identity", s.ID().String())
	return s, nil
}

// load sets flags from the environment and the file.
func load(flags *pflag.FlagSet, file string) error {
	if file == "" {
		file = os.Getenv("NUSA_CONFIG")
	}
	err := config.Load(flags, os.LookupEnv, file)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("--config: %w", err)
	}
	if err != nil {
		return cli.Faults(strings.Split(err.Error(), "\n"))
	}
	return nil
}

// configCommand returns the command that checks settings and starts nothing.
func configCommand() *cobra.Command {
	only := func(what string) func(*cobra.Command, []string) error {
		return func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return cmd.Help()
			}
			return fmt.Errorf("%q is not %s; see %s --help", args[0], what, cmd.CommandPath())
		}
	}
	group := &cobra.Command{Use: "config", Short: "Check the settings of a role", GroupID: rolesGroup,
		Args: cobra.ArbitraryArgs, RunE: only("a command of config: validate is")}
	validate := &cobra.Command{
		Use:   "validate ROLE [flags of the role]",
		Short: "Print the effective settings of a role, each with its source",
		Long: `Reads flags, NUSA_* variables and --config FILE as 'nusa global', 'nusa regional'
or 'nusa agent' would, prints the effective settings and where each comes from,
and starts nothing. Exit code 1 names every fault with its file and line.`,
		Args:    cobra.ArbitraryArgs,
		RunE:    only("a role: global, regional and agent are"),
		Example: "  nusa config validate regional --config /etc/nusa/regional.yaml",
	}
	for _, role := range []*cobra.Command{globalCommand(), regionalCommand(), agentCommand()} {
		role.Example = strings.ReplaceAll(role.Example, "nusa "+role.Name(), "nusa config validate "+role.Name())
		role.GroupID = ""
		role.Short = "Check the settings of 'nusa " + role.Name() + "'"
		role.RunE = func(cmd *cobra.Command, _ []string) error {
			return config.Print(cmd.OutOrStdout(), cmd.Flags())
		}
		validate.AddCommand(role)
	}
	group.AddCommand(validate)
	return group
}
