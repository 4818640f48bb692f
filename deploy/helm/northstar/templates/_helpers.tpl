{{- define "northstar.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "northstar.selector" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{/* The pods that lead to the leader are none of the nodes. */}}
{{- define "northstar.leaderSelector" -}}
app.kubernetes.io/name: {{ default .Chart.Name .Values.nameOverride }}-leader
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "northstar.labels" -}}
{{ include "northstar.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end -}}

{{/* The name of the headless service, which the pods' names end in. */}}
{{- define "northstar.peers" -}}
{{ include "northstar.fullname" . }}-peers.{{ .Release.Namespace }}.svc.{{ .Values.clusterDomain }}
{{- end -}}

{{/* The host name of a pod: (list . INDEX). */}}
{{- define "northstar.host" -}}
{{- $root := index . 0 -}}
{{ include "northstar.fullname" $root }}-{{ index . 1 }}.{{ include "northstar.peers" $root }}
{{- end -}}

{{- define "northstar.scheme" -}}
{{ if eq .Values.tls.mode "none" }}HTTP{{ else }}HTTPS{{ end }}
{{- end -}}

{{/* All names by which clients reach a service: (list . NAME). */}}
{{- define "northstar.serviceNames" -}}
{{- $root := index . 0 -}}
{{- $name := index . 1 -}}
{{- $ns := $root.Release.Namespace -}}
- {{ $name }}
- {{ $name }}.{{ $ns }}
- {{ $name }}.{{ $ns }}.svc
- {{ $name }}.{{ $ns }}.svc.{{ $root.Values.clusterDomain }}
{{- end -}}

{{/* The text of a setting. Numbers of a values file are floats, whose default form is 2e+06. */}}
{{- define "northstar.setting" -}}
{{ if kindIs "float64" . }}{{ toJson . }}{{ else }}{{ . }}{{ end }}
{{- end -}}

{{/* GOMEMLIMIT: 90 % of the memory limit in bytes. Empty without a limit, and where extraEnv sets the variable. */}}
{{- define "northstar.goMemory" -}}
{{- $set := false -}}
{{- range .Values.extraEnv -}}{{- if eq .name "GOMEMLIMIT" -}}{{- $set = true -}}{{- end -}}{{- end -}}
{{- $limit := get (default dict (.Values.resources).limits) "memory" -}}
{{- if and $limit (not $set) -}}
{{- $text := include "northstar.setting" $limit -}}
{{- $unit := regexFind "[A-Za-z]*$" $text -}}
{{- $bytes := dict "" 1 "k" 1e3 "M" 1e6 "G" 1e9 "T" 1e12 "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776 -}}
{{- if not (and (regexMatch "^[0-9]+([.][0-9]+)?[A-Za-z]*$" $text) (hasKey $bytes $unit)) -}}
{{- fail (printf "resources.limits.memory: must be a number of bytes, or one with k, M, G, T, Ki, Mi, Gi or Ti (got %q)" $text) -}}
{{- end -}}
{{- mulf (trimSuffix $unit $text | float64) (get $bytes $unit) 0.9 | int64 -}}
{{- end -}}
{{- end -}}

{{/* How many connections a node takes from one address, as settings say or by default. */}}
{{- define "northstar.addressConnections" -}}
{{- get .Values.settings "limits.connections-per-address" | default 1024 | int -}}
{{- end -}}

{{/* The name of the cluster's job in Prometheus, which the ServiceMonitor sets. */}}
{{- define "northstar.job" -}}
{{ printf "northstar-%s-%s" .Release.Namespace (include "northstar.fullname" .) }}
{{- end -}}

{{/* The ConfigMap or Secret that has ca.crt, as a field of a volume; empty where none has it. */}}
{{- define "northstar.caVolume" -}}
{{- if eq .Values.tls.mode "none" -}}
{{- else if .Values.tls.caBundle -}}
configMap: {name: {{ .Values.tls.caBundle }}, defaultMode: 0444, items: [{key: ca.crt, path: ca.crt}]}
{{- else if eq .Values.tls.mode "secret" -}}
secret: {secretName: {{ .Values.tls.secretName }}, defaultMode: 0440, items: [{key: ca.crt, path: ca.crt}]}
{{- else if eq .Values.tls.mode "cert-manager" -}}
secret: {secretName: {{ include "northstar.fullname" . }}-0-tls, defaultMode: 0440, items: [{key: ca.crt, path: ca.crt}]}
{{- end -}}
{{- end -}}

{{/* The same as the field ca of a ServiceMonitor. */}}
{{- define "northstar.caSelector" -}}
{{- if .Values.tls.caBundle -}}
configMap: {name: {{ .Values.tls.caBundle }}, key: ca.crt}
{{- else if eq .Values.tls.mode "secret" -}}
secret: {name: {{ .Values.tls.secretName }}, key: ca.crt}
{{- else if eq .Values.tls.mode "cert-manager" -}}
secret: {name: {{ include "northstar.fullname" . }}-0-tls, key: ca.crt}
{{- end -}}
{{- end -}}

{{/* The configuration of the proxies that lead to the leader. */}}
{{- define "northstar.haproxy" -}}
{{- $connections := include "northstar.addressConnections" . | int -}}
# The nodes take {{ $connections }} connections of one address, such as this pod's: the setting
# limits.connections-per-address. The checks of the kubelet have places of their own.
global
  maxconn {{ add $connections 16 }}

resolvers kube
  parse-resolv-conf
  accepted_payload_size 8192
  hold valid 1s
  timeout resolve 1s
  timeout retry 1s

defaults
  mode tcp
  timeout connect 1s
  timeout client 1h
  timeout server 1h
  timeout check 1s

# The pod's own address is an IPv4 or an IPv6 one.
frontend leader
  maxconn {{ max 8 (sub $connections 16) }}
  bind "${POD_IP}:{{ .Values.ports.http }}"
  bind 127.0.0.1:{{ .Values.ports.http }} # kubectl port-forward
  default_backend leader

frontend health
  mode http
  bind "${POD_IP}:8404"
  http-request return status 200 if { nbsrv(leader) ge 1 }
  http-request return status 503

backend leader
  option httpchk
  http-check send meth GET uri /health/leader
  http-check expect status 200
  default-server check inter 250ms fall 1 rise 1 on-marked-down shutdown-sessions resolvers kube init-addr none
  server-template node 7 {{ include "northstar.peers" . }}:{{ .Values.ports.http }}
  {{- if include "northstar.caVolume" . }} check-ssl verify required verifyhost {{ include "northstar.fullname" . }}.{{ .Release.Namespace }}.svc ca-file /etc/northstar/ca.crt
  {{- else if eq .Values.tls.mode "csi" }} check-ssl verify none
  {{- end }}
{{- end -}}
