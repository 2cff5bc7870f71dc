package bus

import (
	"fmt"
	"os"
	"strings"

	"github.com/spf13/pflag"

	"github.com/nusa-scheduler/nusa/cmd/nusa/client/cli"
	"github.com/nusa-scheduler/nusa/cmd/nusa/client/term"
	nusav1 "github.com/nusa-scheduler/nusa/proto/nusa/v1"
)

// Broker has the flags of a message broker.
type Broker struct {
	urls                               []string
	user                               string
	passwordFile, ca, certificate, key string
}

// Flags adds the flags to a command.
func (b *Broker) Flags(f *pflag.FlagSet) {
	f.StringSliceVar(&b.urls, "url", nil, "tls://HOST:PORT (NATS) or amqps://HOST:PORT/VHOST (RabbitMQ), also several (required)")
	f.StringVar(&b.user, "user", "", "user of the broker")
	f.StringVar(&b.passwordFile, "password-file", "", "file with the password, the NATS token or the NATS credentials (.creds); - for standard input")
	f.StringVar(&b.ca, "broker-ca-file", "", "file with the authorities of the broker, in PEM (default: those of the global servers)")
	f.StringVar(&b.certificate, "broker-cert-file", "", "file with the certificate of the client, in PEM")
	f.StringVar(&b.key, "broker-key-file", "", "file with its private key, in PEM")
}

// Read returns the broker and its secrets. The secrets are nil if no flag names any.
func (b *Broker) Read(c *cli.Session) (*nusav1.Broker, *nusav1.BrokerSecrets, error) {
	out := &nusav1.Broker{Urls: b.urls, User: b.user}
	for _, file := range []struct {
		flag, name string
		to         *string
	}{{"--broker-ca-file", b.ca, &out.Ca}, {"--broker-cert-file", b.certificate, &out.Certificate}} {
		if file.name == "" {
			continue
		}
		text, err := os.ReadFile(file.name)
		if err != nil {
			return nil, nil, fmt.Errorf("%s: %w", file.flag, err)
		}
		*file.to = string(text)
	}
	if b.passwordFile == "" && b.key == "" {
		return out, nil, nil
	}
	secrets := &nusav1.BrokerSecrets{}
	for _, file := range []struct {
		flag, name string
		to         *string
	}{{"--password-file", b.passwordFile, &secrets.Password}, {"--broker-key-file", b.key, &secrets.Key}} {
		if file.name == "" {
			continue
		}
		text, err := cli.ReadSecret(c.Cmd, file.name)
		if err != nil {
			return nil, nil, fmt.Errorf("%s: %w", file.flag, err)
		}
		*file.to = strings.TrimRight(text, "\r\n")
	}
	return out, secrets, nil
}

// Rows returns the lines of a table about a broker.
func Rows(b *nusav1.Broker) [][2]string {
	credentials := []string{}
	if b.GetUser() != "" {
		credentials = append(credentials, "user "+b.GetUser())
	}
	if b.GetHasPassword() {
		credentials = append(credentials, "a password")
	}
	if b.GetCertificate() != "" {
		credentials = append(credentials, "a certificate")
	}
	return [][2]string{
		{"Broker", Kind(b)}, {"Addresses", strings.Join(b.GetUrls(), ", ")}, {"Credentials", strings.Join(credentials, ", ")},
	}
}

// Kind returns the name of a broker.
func Kind(b *nusav1.Broker) string {
	switch b.GetKind() {
	case nusav1.BrokerKind_BROKER_KIND_NATS:
		return "NATS"
	case nusav1.BrokerKind_BROKER_KIND_RABBITMQ:
		return "RabbitMQ"
	}
	return "?"
}

// Host returns the host of the first address of a broker.
func Host(b *nusav1.Broker) string {
	if len(b.GetUrls()) == 0 {
		return ""
	}
	_, rest, _ := strings.Cut(b.GetUrls()[0], "://")
	host, _, _ := strings.Cut(rest, "/")
	return term.OneLine(host)
}
