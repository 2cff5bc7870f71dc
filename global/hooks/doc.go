// Package hooks sends durable events to the endpoints of webhooks. Only the active global server
// does so. The folder delivery has the core: which event is sent, and when.
//
//	hook.go       hook: a webhook as the delivery needs it, and its checks
//	receiver.go   receiver: the delivery to one endpoint, with its own queue and goroutines
//	recent.go     the latest deliveries to an endpoint, for people
//	sender.go     Sender: all receivers of a leadership term; stores their progress; alarms
//	service.go    the public Webhooks service: set, get, list, remove, rotate, enable, disable
//	inspect.go    the public Webhooks service: test, log, replay
//	metrics.go    metrics of the delivery
package hooks
