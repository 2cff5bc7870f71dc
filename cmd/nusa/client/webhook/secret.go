package webhook

import (
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/cli"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/term"
	"github.com/nusa-scheduler/nusa/internal/replace"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

func rotateCommand(s *cli.Settings) *cobra.Command {
	var finish bool
	var secretFile, out string
	c := &cobra.Command{
		Use: "rotate NAME", Short: "Add a secret that signs; with --finish remove the earlier ones", Args: cli.Positional("NAME"),
		Long: `Adds a secret. From then on each request has a signature by every secret, so the
endpoint may verify with the earlier or with the new one. When the endpoint knows the
new secret, --finish removes the earlier ones.`,
		RunE: s.Run(func(c *cli.Session, args []string) error {
			req := &nusav1.RotateWebhookRequest{Name: args[0], Finish: finish}
			given, err := readSecrets(c, secretFile)
			switch {
			case err != nil:
				return err
			case len(given) > 1:
				return fmt.Errorf("--secret-file has %d secrets: give one", len(given))
			case len(given) == 1:
				req.Secret = given[0]
			}
			file, err := reserve(out)
			if err != nil {
				return err
			}
			defer file.discard()
			ctx, cancel := c.WithTimeout()
			defer cancel()
			resp, err := client(c).Rotate(ctx, req)
			if err != nil {
				return err
			}
			return printSecret(c, resp, &resp.Secret, file, fmt.Sprintf("webhook %s signs with %s", args[0], term.Plural(int(resp.GetWebhook().GetSecrets()), "secret")))
		}),
	}
	f := c.Flags()
	f.BoolVar(&finish, "finish", false, "remove all secrets but the newest")
	f.StringVar(&secretFile, "secret-file", "", "file with your own secret, whsec_…; - for standard input")
	f.StringVar(&out, "secret-out", "", "write the secret into this new file (default: print it)")
	return c
}

// readSecrets returns the secrets of a file, one a line. There is none without a file.
func readSecrets(c *cli.Session, name string) ([]string, error) {
	if name == "" {
		return nil, nil
	}
	text, err := cli.ReadSecret(c.Cmd, name)
	if err != nil {
		return nil, fmt.Errorf("--secret-file: %w", err)
	}
	return strings.Fields(text), nil
}

// secretFile is the new file of --secret-out, or none.
type secretFile struct {
	path    string
	written bool
}

// reserve creates the file, so that no secret is made for a file that cannot be written.
func reserve(path string) (*secretFile, error) {
	if path == "" {
		return &secretFile{}, nil
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, fmt.Errorf("--secret-out: %s: name a new file in a folder that you may write", err)
	}
	return &secretFile{path: path}, f.Close()
}

// discard removes a file without a secret.
func (f *secretFile) discard() {
	if f.path != "" && !f.written {
		_ = os.Remove(f.path)
	}
}

// printSecret prints a response. The secret goes into the file, if there is one.
func printSecret(c *cli.Session, resp proto.Message, secret *string, file *secretFile, done string) error {
	if *secret != "" && file.path != "" {
		if err := replace.File(file.path, []byte(*secret+"\n")); err != nil {
			return fmt.Errorf("--secret-out: %w: %s webhook rotate makes another secret", err, c.Program)
		}
		file.written, *secret = true, ""
	}
	return c.Print(resp, func(w *term.Screen) {
		if *secret != "" {
			fmt.Fprintln(w, *secret)
		}
		fmt.Fprintln(c.Cmd.ErrOrStderr(), done)
	})
}
