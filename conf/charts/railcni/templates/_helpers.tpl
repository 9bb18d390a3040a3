{{- define "railcni.labels" -}}
app.kubernetes.io/name: railcni
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{/* The reference of an image: (dict "image" VALUES "of" NAME "chart" .Chart) */}}
{{- define "railcni.image" -}}
{{- $why := printf "%s.repository is empty: push the image that `make image` makes to a registry of yours, and name it: --set %s.repository=HOST/railcni" .of .of }}
{{- $repository := required $why .image.repository -}}
{{- if .image.digest -}}
{{ $repository }}@{{ .image.digest }}
{{- else -}}
{{ $repository }}:{{ .image.tag | default .chart.AppVersion }}
{{- end -}}
{{- end }}

{{/* A namespace of conf/kubernetes in this release: (dict "name" NAMESPACE "root" $) */}}
{{- define "railcni.namespace" -}}
{{ get (dict "railcni" .root.Release.Namespace "kube-system" .root.Values.leaseNamespace) .name | default .name }}
{{- end }}

{{/* The documents of a file of conf/kubernetes, with the labels, namespaces and accounts of this release, and with more labels
     and annotations: (dict "file" NAME "root" $ "labels" DICT "annotations" DICT) */}}
{{- define "railcni.documents" -}}
{{- $root := .root -}}
{{- $file := $root.Files.Get (printf "files/%s.yaml" .file) | replace ":kube-system:railcni'" (printf ":%s:railcni'" $root.Values.leaseNamespace) }}
{{- $file = $file | replace ":railcni:railcni'" (printf ":%s:railcni'" $root.Release.Namespace) }}
{{- range $text := splitList "\n---\n" $file }}
{{- $document := fromYaml $text }}
{{- $metadata := $document.metadata }}
{{- $_ := set $metadata "labels" (merge (fromYaml (include "railcni.labels" $root)) ($.labels | default dict)) }}
{{- with $.annotations }}{{ $_ := set $metadata "annotations" . }}{{ end }}
{{- range concat (list $metadata) ($document.subjects | default list) }}
{{- if .namespace }}{{ $_ := set . "namespace" (include "railcni.namespace" (dict "name" .namespace "root" $root)) }}{{ end }}
{{- end }}
---
{{ toYaml $document }}
{{- end }}
{{- end }}
